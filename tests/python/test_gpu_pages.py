"""Attention over pages on a GPU: values against float64, graphs, batch invariance, refusals."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tessera  # noqa: E402
from tessera import BlockMask  # noqa: E402

IS_HOPPER = (torch.cuda.is_available() and tessera.cuda_device_count() > 0
             and torch.cuda.get_device_capability()[0] == 9)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not IS_HOPPER, reason="pages need compute capability 9.x"),
]
TOLERANCE = {torch.bfloat16: 2**-7, torch.float16: 2**-10}


class Cache:
    """Keys and values of sequences on pages in a random order. What no sequence has is NaN."""

    def __init__(self, lengths, page, kv_heads=2, dim=64, dtype=torch.bfloat16, spare=3):
        generator = torch.Generator().manual_seed(page)
        self.page, self.lengths = page, list(lengths)
        counts = [-(-n // page) for n in lengths]
        order = torch.randperm(sum(counts) + spare, generator=generator)
        self.k, self.v = (torch.full((len(order), page, kv_heads, dim), torch.nan, dtype=dtype)
                          for _ in "kv")
        self.table = torch.full((len(lengths), max(counts) + 1), -1, dtype=torch.int32)
        for b, count in enumerate(counts):
            pages, order = order[:count], order[count:]
            self.table[b, :count] = pages.int()
            for pool in (self.k, self.v):
                rows = torch.randn(count * page, kv_heads, dim, generator=generator).to(dtype)
                rows[lengths[b] :] = torch.nan
                pool[pages] = rows.reshape(count, page, kv_heads, dim)
        self.ends = torch.tensor(lengths, dtype=torch.int32)
        for name in ("k", "v", "table", "ends"):
            setattr(self, name, getattr(self, name).cuda())

    def arguments(self):
        return {"page_table": self.table, "kv_end": self.ends}

    def keys_of(self, b, pool):
        return pool[self.table[b].clamp(min=0).long()].flatten(0, 1)[: self.lengths[b]]

    def wanted(self, q, causal=False):
        """The results in float64."""
        outs = []
        for b, length in enumerate(self.lengths):
            k, v = (self.keys_of(b, pool).double().transpose(0, 1) for pool in (self.k, self.v))
            heads = q[b].double().transpose(0, 1)
            k, v = (x.repeat_interleave(len(heads) // len(k), 0) for x in (k, v))
            scores = heads @ k.mT * q.shape[-1] ** -0.5
            if causal:
                seen = torch.ones(scores.shape[1:], device=q.device).tril(length - q.shape[1]) == 1
                scores = scores.masked_fill(~seen, -torch.inf)
            outs.append((scores.softmax(-1) @ v).transpose(0, 1))
        return torch.stack(outs)


def queries(batch, count=1, heads=8, dim=64, dtype=torch.bfloat16):
    torch.manual_seed(count)
    return torch.randn(batch, count, heads, dim, device="cuda").to(dtype)


def close(got, want):
    limit = TOLERANCE[got.dtype]
    torch.testing.assert_close(got.double(), want, rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("page", [16, 32, 64, 128, 256])
def test_pages_of_every_size(page, dtype):
    cache = Cache([page, page + 1, 2 * page - 1, 700], page, dtype=dtype)
    for count in (1, 4, 16):
        q = queries(4, count, dtype=dtype)
        out = tessera.attention(q, cache.k, cache.v, causal=True, **cache.arguments())
        close(out, cache.wanted(q, causal=True))
    assert tessera.explain("attention", q, cache.k, cache.v, **cache.arguments())["plan"][
        "kernel_name"].startswith("sm90_decode")


def test_a_block_mask_over_pages():
    cache = Cache([640, 512], 16)
    q = queries(2)
    keys = 16 * cache.table.shape[1]
    chosen = torch.zeros(1, keys, dtype=torch.bool)
    chosen[:, 64:192] = chosen[:, 448:512] = True
    mask = BlockMask.from_dense(chosen, (1, 64)).to("cuda")
    out = tessera.attention(q, cache.k, cache.v, mask=mask, **cache.arguments())
    want = []
    for b in range(2):
        k, v = (cache.keys_of(b, pool)[chosen[0, : cache.lengths[b]].cuda()].double()
                for pool in (cache.k, cache.v))
        k, v = (x.transpose(0, 1).repeat_interleave(4, 0) for x in (k, v))
        scores = q[b].double().transpose(0, 1) @ k.mT * 64**-0.5
        want.append((scores.softmax(-1) @ v).transpose(0, 1))
    close(out, torch.stack(want))


def test_a_graph_serves_other_tables_and_lengths():
    first, second = Cache([700, 30, 64], 64), Cache([65, 512, 1], 64, spare=3)
    q = queries(3)
    pages, width = (max(one.k.shape[0] for one in (first, second)),
                    max(one.table.shape[1] for one in (first, second)))
    k, v = (torch.full((pages, *first.k.shape[1:]), torch.nan, dtype=q.dtype, device="cuda")
            for _ in "kv")
    table = torch.full((3, width), -1, dtype=torch.int32, device="cuda")
    ends = torch.zeros(3, dtype=torch.int32, device="cuda")
    plan = tessera.plan("attention", q, k, v, page_table=table, kv_end=ends)
    out = torch.empty_like(q)
    plan.run(q, k, v, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(q, k, v, out=out)
        same = tessera.attention(q, k, v, page_table=table, kv_end=ends)
    for cache in (first, second, first):
        k[: cache.k.shape[0]], v[: cache.v.shape[0]] = cache.k, cache.v
        table.fill_(-1)[:, : cache.table.shape[1]] = cache.table
        ends.copy_(cache.ends)
        graph.replay()
        torch.cuda.synchronize()
        close(out, cache.wanted(q))
        assert torch.equal(out, same)


def test_batch_invariant_results_are_those_of_a_sequence_alone():
    cache = Cache([5000, 30, 700, 4096], 64)
    q = queries(4, 2)
    options = {"causal": True, "batch_invariant": True, "return_lse": True}
    out, lse = tessera.attention(q, cache.k, cache.v, **cache.arguments(), **options)
    close(out, cache.wanted(q, causal=True))
    for b in range(4):
        alone = tessera.attention(q[b : b + 1], cache.k, cache.v, kv_end=cache.ends[b : b + 1],
                                  page_table=cache.table[b : b + 1], **options)
        assert torch.equal(alone[0], out[b : b + 1]) and torch.equal(alone[1], lse[b : b + 1])


def test_tables_that_do_not_fit_are_refused_by_name():
    cache = Cache([100, 90], 32)
    q, given = queries(2), cache.arguments()

    def refused(match, **changed):
        with pytest.raises(ValueError, match=match):
            tessera.attention(q, cache.k, cache.v, **{**given, **changed})

    width = cache.table.shape[1]
    refused(rf"max_kv_length: expected 0 \(unknown\) to {32 * width}, got {32 * width + 1}",
            max_kv_length=32 * width + 1)
    refused(r"page_table: expected shape \[batch = 2", page_table=cache.table[:1])
    refused("kv_end: expected a list", kv_end=None)
    refused(r"kv_end: expected shape \[batch = 2", kv_end=cache.ends[:1])
    refused("page_table: expected .*cuda", page_table=cache.table.cpu())
    refused("page_table: expected dtype i32", page_table=cache.table.long())
    with pytest.raises(NotImplementedError, match="pages of 8, 16 or 32 keys, or of a multiple"):
        odd = Cache([100, 90], 24)
        tessera.attention(q, odd.k, odd.v, **odd.arguments())


def test_lengths_beyond_the_table_end_with_it():
    """Lists in GPU memory are not read by the checks; keys that no page holds are skipped."""
    cache = Cache([128, 64], 64)
    q = queries(2)
    far = torch.tensor([10**6, 64], dtype=torch.int32, device="cuda")
    out = tessera.attention(q, cache.k, cache.v, page_table=cache.table, kv_end=far)
    close(out, cache.wanted(q))
