"""Serves requests from a cache in pages: admits them, prefills in chunks, decodes, evicts.

The model is random. On a GPU decoding is one CUDA graph. Where no page is free, the youngest
request gives up its pages and starts again later. The second run decodes with lists: a token sees
the first page, the last, and those whose mean key suits its query best."""

import time
from collections import deque

import torch
import torch.nn.functional as F
from common import arguments, check, choose_device, name_of, share, whole_number

import tessera

PAGE, CHUNK, SLOTS, VOCABULARY, LAYERS, HEADS, KV_HEADS, DIM = 64, 128, 4, 512, 2, 8, 2, 64
WIDTH = HEADS * DIM
parser = arguments(__doc__)
parser.add_argument("--requests", type=whole_number(1), default=8)
parser.add_argument("--length", type=whole_number(8), default=384, help="of the longest prompt")
parser.add_argument("--words", type=whole_number(1), default=72, help="tokens to generate for each")
parser.add_argument("--keep", type=share, default=0.5, help="share of the pages that a token sees")
options = parser.parse_args()
LONGEST = -(-(options.length + options.words) // PAGE)  # pages of one request
PAGES = LONGEST * SLOTS // 2                            # too few for all slots


def model(weights, tokens, positions, attend):
    """Logits of tokens [batch, length]; `attend(layer, q, k, v)` is the model's attention."""
    embedding, places, *layers = weights
    x = embedding[tokens.long()] + places[positions]
    for i in range(LAYERS):
        qkv, out, mlp = layers[3 * i : 3 * i + 3]
        heads = (F.rms_norm(x, (WIDTH,)) @ qkv).unflatten(-1, (-1, DIM))
        x = x + attend(i, *heads.split([HEADS, KV_HEADS, KV_HEADS], 2)).flatten(2) @ out
        x = x + F.silu(F.rms_norm(x, (WIDTH,))) @ mlp
    return F.rms_norm(x, (WIDTH,)) @ embedding.T


class Request:
    def __init__(self, prompt):
        self.prompt, self.tokens, self.logits = prompt, [], []  # tokens: chosen from the logits
        self.pages, self.done, self.slot = [], 0, None          # done: tokens in the cache

    @property
    def pending(self):
        return (self.prompt + self.tokens)[self.done :]


class Engine:
    def __init__(self, keep):
        self.requests = [Request(prompt) for prompt in prompts]
        self.waiting, self.running = deque(self.requests), []  # running: the oldest first
        self.keep, self.tokens, self.evictions = keep, 0, 0
        # Slots that decode nothing compute as well, for one graph: they write to page 0.
        self.slots, self.free = list(range(SLOTS)), deque(range(1, PAGES + 1))
        new = weights[0].new_zeros
        self.k, self.v = new(2, LAYERS, PAGES + 1, PAGE, KV_HEADS, DIM)
        self.key_sums = new(LAYERS, PAGES + 1, KV_HEADS, DIM, dtype=torch.float32)
        self.table = new(SLOTS, LONGEST, dtype=torch.int32)
        self.batch = new(3, SLOTS, dtype=torch.int32)  # last token, tokens in the cache, decodes
        if device.type == "cuda":
            self.decode()  # what a capture may not do is done once before
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                logits = self.decode()
            self.decode = lambda: graph.replay() or logits

    def decode(self):
        last, lengths, decodes = self.batch
        return self.forward(last[:, None], self.table * decodes[:, None], lengths)

    def forward(self, tokens, table, lengths):
        """Writes tokens [batch, length] into the cache; returns the logits after the last."""
        count, ends = tokens.shape[1], lengths + tokens.shape[1]
        positions = lengths[:, None] + torch.arange(count, device=device)
        pages = table.gather(1, positions // PAGE).flatten()

        def attend(layer, q, k, v):
            cache = tessera.paged.Cache(self.k[layer], self.v[layer], table, lengths)
            tessera.paged.append(k, v, cache)
            self.key_sums[layer].index_add_(0, pages, k.flatten(0, 1).float())
            mask = self.lists(layer, q, table, ends) if count == 1 and self.keep < 1 else None
            return tessera.attention(q, cache.k, cache.v, page_table=table, kv_end=ends,
                                     causal=True, mask=mask)

        return model(weights, tokens, positions, attend)[:, -1].float()

    def lists(self, layer, q, table, ends):
        """The pages that the query of each sequence sees, for each head of keys."""
        begins, ends = torch.arange(LONGEST, device=device) * PAGE, ends[:, None, None]
        means = self.key_sums[layer][table] / (ends - begins[:, None]).clamp(1, PAGE)[..., None]
        groups = q[:, 0].float().unflatten(1, (KV_HEADS, -1))  # of heads that share keys
        scores = torch.einsum("bhgd,bphd->bhp", groups, means)
        scores.masked_fill_((begins == 0) | (begins + PAGE >= ends), torch.inf)
        scores.masked_fill_(begins >= ends, -torch.inf)
        return tessera.BlockMask.from_top_k(scores[:, :, None], max(2, round(self.keep * LONGEST)),
                                            1, LONGEST * PAGE, (1, PAGE))

    def step(self):
        """Admits a request, prefills one chunk, decodes a token of each that is prefilled."""
        if self.waiting and self.slots and len(self.waiting[0].pending) <= len(self.free) * PAGE:
            self.running.append(self.waiting.popleft())
            self.running[-1].slot = self.slots.pop()
            self.reserve(self.running[-1], len(self.running[-1].pending))
        if prefill := next((r for r in self.running if len(r.pending) > 1), None):
            self.run([prefill], prefill.pending[:CHUNK])
        for request in [r for r in self.running if len(r.pending) == 1]:
            self.reserve(request, request.done + 1)
        if decode := [r for r in self.running if len(r.pending) == 1]:
            self.run(decode)
        for request in [r for r in self.running if len(r.tokens) == options.words]:
            self.release(request)

    def run(self, requests, chunk=None):
        slots, steps, new = [r.slot for r in requests], len(chunk or [1]), self.batch.new_tensor
        if chunk:
            logits = self.forward(new([chunk]), self.table[slots], new([requests[0].done]))
        else:
            self.batch.zero_()[:, slots] = new([(*r.pending, r.done, 1) for r in requests]).T
            logits = self.decode()[slots]
        for request, token, row in zip(requests, logits.argmax(-1).tolist(), logits, strict=True):
            request.done += steps
            if not request.pending:
                request.tokens.append(token)
                request.logits.append(row)
            self.tokens += steps

    def reserve(self, request, length):
        # The youngest requests make room, at last this one itself.
        while len(request.pages) * PAGE < length and request in self.running:
            if self.free:
                self.key_sums[:, self.free[0]] = 0
                self.table[request.slot, len(request.pages)] = self.free[0]
                request.pages.append(self.free.popleft())
            else:
                self.waiting.appendleft(self.release(self.running[-1]))
                self.evictions += 1

    def release(self, request):
        self.running.remove(request)
        self.slots.append(request.slot)
        self.free.extend(request.pages)
        request.pages, request.done = [], 0
        return request


def serve(name, keep):
    engine, begun = Engine(keep), time.perf_counter()
    while left := len(engine.waiting) + len(engine.running):
        engine.step()
        if len(engine.waiting) + len(engine.running) < left:
            print(f"{name}: {len(engine.waiting)} requests wait, {len(engine.running)} run, "
                  f"{len(engine.free)} pages are free, {engine.evictions} evicted, "
                  f"{engine.tokens / (time.perf_counter() - begun):,.0f} tokens/s", flush=True)
    return engine


def dense(layer, q, k, v, seen=None):
    out = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), seen,
                                         is_causal=seen is None, enable_gqa=True)
    return out.transpose(1, 2)


def compare(name, got, want):
    error = float((got - want).abs().max() / want.abs().max())
    print(f"{name} beside float64: error {error:.1e} of the largest value")
    check(name, error, 1e-4 if dtype == torch.float32 else 5e-2)


device, dtype = choose_device(options.device, pages=True)
torch.manual_seed(0)
lengths = torch.linspace(options.length // 4, options.length, options.requests).int().tolist()
prompts = [torch.randint(VOCABULARY, (n,)).tolist() for n in lengths]
sizes = LAYERS * (WIDTH + 2 * KV_HEADS * DIM, WIDTH, WIDTH)
weights = [torch.randn(n, WIDTH).to(device, dtype) for n in (VOCABULARY, LONGEST * PAGE)]
weights += [torch.randn(WIDTH, n).to(device, dtype) * 2 * WIDTH**-0.5 for n in sizes]
print(f"{len(prompts)} prompts, {PAGES} pages of {PAGE}, {dtype} on {name_of(device)}\n")
engine, with_lists = serve("dense", 1), serve("lists", options.keep)

# The requests once more, in one pass without a cache.
wide = [weight.double() for weight in weights]
for request in engine.requests:
    tokens = torch.tensor([request.prompt + request.tokens[:-1]], device=device)
    logits = model(wide, tokens, torch.arange(tokens.shape[1], device=device)[None], dense)[0]
    compare(f"logits after {len(request.prompt)} tokens", torch.stack(request.logits),
            logits[len(request.prompt) - 1 :])

# Attention with lists, over the pages as the last run left them.
table = 1 + torch.rand(SLOTS, PAGES, device=device).argsort(1)[:, :LONGEST].int()
ends = torch.randint(1, LONGEST * PAGE, (SLOTS,), device=device).int()
q = torch.randn(SLOTS, 1, HEADS, DIM, device=device).to(dtype)
mask = with_lists.lists(0, q, table, ends)
seen = mask.to_dense() & (torch.arange(mask.kv_length, device=device) < ends.view(-1, 1, 1, 1))
k, v = (pool[0][table].flatten(1, 2).double() for pool in (with_lists.k, with_lists.v))
want = dense(0, q.double(), k, v, seen.repeat_interleave(HEADS // KV_HEADS, 1))
compare("attention with lists", tessera.attention(
    q, with_lists.k[0], with_lists.v[0], page_table=table, kv_end=ends, mask=mask), want)
