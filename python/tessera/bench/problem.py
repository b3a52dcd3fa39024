"""The inputs of a case on a device, in enough sets to exceed the last cache, and the reference with
which every result is compared before it is timed."""

import copy
from functools import cached_property
from typing import Any

import numpy as np

from . import arrays, flops, patterns
from .cases import ABOUT_ATTENTION, ATTENTION, ATTENTION_PASSES, FP8, LISTS, block_shape, kind_of
from .ours import forward_results
from .reference import make_reference

MOST_SETS = 128
GRADIENTS = ("dq", "dk", "dv")
OUTPUTS = ("out", *GRADIENTS)


class Bsr:
    """A block-sparse matrix of a product: one pattern; each set of inputs has values."""

    def __init__(self, lists, block_rows, block_cols, device, count=None):
        """With `count`, the lists are those of that many matrices, stacked by rows. These have the
        same number of blocks each, or share a pool of blocks."""
        self.lists, self.count = lists, count
        self.block_rows, self.block_cols = block_rows, block_cols
        self.rows, self.cols = lists.rows * block_rows, lists.cols * block_cols
        offsets, indices = lists.offsets, lists.indices
        self.batch: tuple[int, ...] = ()
        if count is not None:
            height = lists.rows // count
            offsets = np.stack([offsets[i * height : (i + 1) * height + 1] for i in range(count)])
            if len(set(offsets[:, -1] - offsets[:, 0])) == 1:
                self.batch = (count,)
                offsets, indices = offsets - offsets[:, :1], indices.reshape(count, -1)
        self.row_offsets = arrays.integers(offsets, device)
        self.col_indices = arrays.integers(indices, device)

    @property
    def values_shape(self):
        return (self.lists.stored, self.block_rows, self.block_cols)

    def operand(self, tessera, values):
        """The BsrMatrix with these values."""
        values = values.reshape(*self.batch, -1, self.block_rows, self.block_cols)
        return tessera.BsrMatrix(values, self.row_offsets, self.col_indices,
                                 self.rows // (self.count or 1), self.cols)

    def dense_rows(self, values, rows, factors=None):
        """The chosen rows as dense rows in double precision, times the factors of their blocks."""
        dense = np.zeros((len(rows), self.cols))
        for place, row in enumerate(rows):
            i, inside = divmod(int(row), self.block_rows)
            entries = np.arange(self.lists.offsets[i], self.lists.offsets[i + 1])
            stored = arrays.take(values, entries, inside)
            if factors is not None:
                stored = stored * arrays.to_f64(factors)[entries if len(factors) > 1 else 0, None]
            for column, part in zip(self.lists.row(i), stored, strict=True):
                dense[place, column * self.block_cols : (column + 1) * self.block_cols] = part
        return dense

    def fill_dense(self, values):
        """The matrix, or all matrices, as a dense array of the same kind."""
        shape = (self.lists.rows, self.lists.cols, self.block_rows, self.block_cols)
        row, col = self.lists.row_of_entry(), self.lists.indices
        if isinstance(values, np.ndarray):
            dense = np.zeros(shape, values.dtype)
        else:
            dense = values.new_zeros(shape)
            row, col = (arrays.to_torch(one).to(values.device) for one in (row, col))
        dense[row, col] = values
        whole = () if self.count is None else (self.count,)
        return dense.swapaxes(1, 2).reshape(*whole, -1, self.cols)


def stacked(lists, width, device):
    """Counts [1, heads, rows] and indices [1, heads, rows, width] of lists per head; the default
    width is the longest row."""
    if width is None:
        width = max(1, *(int(one.counts.max(initial=0)) for one in lists))
    counts, indices = zip(*(one.padded(width) for one in lists), strict=True)
    return (arrays.integers(np.stack(counts)[None], device),
            arrays.integers(np.stack(indices)[None], device))


def split_by_visibility(problem, width=None):
    """The lists of an attention case as `stacked` gives them: of blocks of which causality and the
    window leave a part, and of those of which they leave all."""
    whole, partial = zip(*(flops.classify(problem.params, one) for one in problem.lists),
                         strict=True)
    return stacked(partial, width, problem.device), stacked(whole, width, problem.device)


def transposed_by_visibility(problem):
    """The same lists by columns: for each block of keys, the blocks of queries."""
    whole, partial = zip(*(flops.classify(problem.params, one) for one in problem.lists),
                         strict=True)
    return tuple(stacked([patterns.lists_of(one.blocks().T) for one in kind], None, problem.device)
                 for kind in (partial, whole))


class Pages:
    """Where the keys of an attention case are: the sequences' pages, in a random order."""

    def __init__(self, params, device):
        self.size, self.lengths = params["page"], flops.key_lengths(params)
        counts = -(-self.lengths // self.size)
        self.count, width = int(counts.sum()), int(counts.max())
        self.numbers = np.random.default_rng(1).permutation(self.count)  # sequence by sequence
        self.offsets = np.concatenate([[0], np.cumsum(counts)])
        self.host_table = np.zeros((len(counts), width), dtype=np.int32)  # unused entries: page 0
        self.host_table[np.arange(width) < counts[:, None]] = self.numbers
        self.table = arrays.integers(self.host_table, device)
        self.ends = arrays.integers(self.lengths, device)

    def keys_of(self, pool, sequence, head):
        """The keys or values of a sequence and head, in double precision."""
        first, end = self.offsets[sequence], self.offsets[sequence + 1]
        rows = arrays.take(pool, self.numbers[first:end], slice(None), head)
        return rows.reshape(-1, rows.shape[-1])[: self.lengths[sequence]]

    def contiguous(self, pool):
        """A copy [sequences, keys, heads, dim] of a pool on the device. Keys beyond the end of a
        sequence are of any page."""
        return pool[self.table.long()].flatten(1, 2)


class Problem:
    """`sets[i]` is a dictionary of arrays: q, k, v, out or a, b, out; a sparse operand's entry
    holds its values, and its pattern is in `bsr_a`, `bsr_b` or `bsr_out`. For operations that
    make lists, it has the blocks or scores. For gradients it has dout, dq, dk and dv as well, and
    out and lse of the forward pass. For FP8 it has q_scale, k_scale and v_scale, or a_scale and
    b_scale. `difficult`: q, k and v have a mean
    and uneven channels, a and a dense b uneven rows and channels."""

    def __init__(self, case, device, cache_bytes=0, difficult=False):
        self.case, self.params, self.op = case, case.params, case.op
        self.backend = case.params.get("backend")
        self.device, self.dtype = device, case.params["dtype"]
        self.kv_dtype = case.params.get("kv_dtype", self.dtype)
        self.out_dtype = "bf16" if self.dtype == FP8 else self.dtype
        self.cache_bytes, self.difficult = cache_bytes, difficult
        self.lists: Any = None
        self.pages = Pages(case.params, device) if "page" in case.params else None
        self.bsr_a = self.bsr_b = self.bsr_out = None
        self._make_patterns()
        shapes = self._shapes()
        self.bytes = sum(int(np.prod(shape)) * self._bytes_of(name)
                         for name, shape in shapes.items())
        count = 1 if not cache_bytes else -(-3 * cache_bytes // max(1, self.bytes))
        self.sets = [self._make_set(shapes, number) for number in range(min(count, MOST_SETS))]

    def _make_patterns(self):
        p, device = self.params, self.device
        if "sequences" in p or "experts" in p:  # offsets of the sequences or experts
            self.lengths = (flops.sequence_lengths if "sequences" in p else flops.expert_rows)(p)
            self.offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        if self.op in ABOUT_ATTENTION:
            self.lists = patterns.attention_lists(p) if self.case.sparse else None
        elif self.op == "spgemm":
            block = p["block"]
            self.lists = patterns.spgemm_lists(p)
            self.bsr_a, self.bsr_b = (Bsr(one, block, block, device) for one in self.lists)
        elif self.op != "matmul":
            self.lists = patterns.product_lists(self.op, p)
            height, width = block_shape(p)
            bsr = Bsr(self.lists, height, width, device, p.get("experts"))
            setattr(self, "bsr_out" if self.op == "sddmm" else "bsr_" + p["side"], bsr)

    def _shapes(self):
        p = self.params
        if self.op in ATTENTION_PASSES:
            b, s, skv, h, hk, d, dv = (p[n] for n in ("b", "s", "skv", "h", "hk", "d", "dv"))
            batch = () if "sequences" in p else (b,)
            rows = (self.pages.count, self.pages.size) if self.pages else (*batch, skv)
            forward = {"q": (*batch, s, h, d), "k": (*rows, hk, d), "v": (*rows, hk, dv),
                       "out": (*batch, s, h, dv)}
            if self.op == "attention":
                return forward
            return {**forward, "dout": forward["out"],
                    **{"d" + name: forward[name] for name in "qkv"}}
        if self.op in LISTS:
            name = "blocks" if self.op == "list_blocks" else "scores"
            return {name: (1, len(self.lists), self.lists[0].rows, self.lists[0].cols)}
        m, n, k = p["m"], p["n"], p["k"]
        a, b, out = (m, k), (k, n), (m, n)
        if self.op == "matmul":
            a = a if p["transpose"][0] == "n" else (k, m)
            b = b if p["transpose"][1] == "n" else (n, k)
            b = (p["experts"], *b) if "experts" in p else b
        a = self.bsr_a.values_shape if self.bsr_a else a
        b = self.bsr_b.values_shape if self.bsr_b else b
        out = self.bsr_out.values_shape if self.bsr_out else out
        # The pattern of a sparse x sparse product is part of its result.
        return {"a": a, "b": b} if self.op == "spgemm" else {"a": a, "b": b, "out": out}

    def _bytes_of(self, name):
        if name == "blocks":
            return 1
        return arrays.BYTES[self.out_dtype if name in OUTPUTS else self._dtype_of(name)]

    def _dtype_of(self, name):
        """Of an input."""
        return self.kv_dtype if name in ("k", "v") else self.dtype

    @property
    def coarsest_dtype(self):
        """The dtype that decides how far apart two right results may be."""
        return FP8 if self.case.fp8 else self.dtype

    def _make_set(self, shapes, number):
        made = {}
        for place, (name, shape) in enumerate(shapes.items()):
            if name in OUTPUTS:
                made[name] = arrays.empty(shape, self.out_dtype, self.device)
            elif name == "blocks":
                blocks = np.stack([one.blocks() for one in self.lists])[None]
                made[name] = arrays.on_device(blocks, self.device)
            elif self._dtype_of(name) == FP8:
                made[name], made[name + "_scale"] = self._in_fp8(name, shape, 1000 * number + place)
            else:
                made[name] = arrays.normal(shape, self._dtype_of(name), self.device,
                                           1000 * number + place)
            if self.case.fp8:  # of which NumPy has no arrays: all of them are tensors
                made[name] = arrays.to_torch(made[name])
        if self.op == "attention_backward":
            made["out"], made["lse"] = forward_results(self, made)
        return made

    def _in_fp8(self, name, shape, seed):
        """(values, factors) of q, k or v, or of a or b, quantised from bf16."""
        values = arrays.normal(shape, "bf16", self.device, seed)
        if kind_of(self.op) != ATTENTION:
            return self._operand_in_fp8(name, values)
        if self.difficult and name == "v":
            values = 1 + values / 2
            values[..., ::32] *= 8
        elif self.difficult:
            values[..., ::64] *= 4
        per_head = self.params["factors"] == "head"
        values, factors = arrays.quantized(values, self.params["hk"] if per_head else 1)
        return arrays.by_keys(values) if name == "v" and self.v_by_keys else values, factors

    @property
    def v_by_keys(self):
        return self.params.get("v_layout") == "keys"

    def _operand_in_fp8(self, name, values):
        if self._bsr(name):
            if self.params["factors"] != "tensor":
                values, factors = arrays.quantized_boxes(values, (None, None))
                return values, factors.flatten()
            whole, factors = arrays.quantized_boxes(values.flatten(0, 1), (None, None))
            return whole.view(values.shape), factors.flatten()
        if self.difficult:
            values[..., ::64, :] *= 16
            values[..., ::64] *= 4
        values, factors = arrays.quantized_boxes(values, self.box_of(name))
        one = self.params["factors"] == "tensor" and values.ndim == 2
        return values, factors.flatten() if one else factors

    def _bsr(self, name):
        return {"a": self.bsr_a, "b": self.bsr_b}[name]

    def box_of(self, name):
        """Rows and columns that share a factor of a dense operand, which lies along the depth; None
        is all of them."""
        blocks = (1, 128) if name == "a" else (128, 128)
        return {"tensor": (None, None), "row": (1, None), "block": blocks}[self.params["factors"]]

    @cached_property
    def with_difficult_values(self):
        """Of FP8, the same problem with inputs that are harder to quantise; else None."""
        if self.dtype != FP8:
            return None
        return Problem(self.case, self.device, difficult=True)

    def in_bf16(self):
        """A problem in FP8 with the same values in bf16, and the same results."""
        made = copy.copy(self)
        made.dtype = made.kv_dtype = "bf16"
        names = "qkv" if kind_of(self.op) == ATTENTION else "ab"
        made.sets = [{"out": one["out"], **{
            name: self._widened(one, name) for name in names}}
            for one in self.sets]
        if self.v_by_keys:  # which only FP8 supports
            for one in made.sets:
                one["v"] = one["v"].contiguous()
        return made

    def _widened(self, inputs, name):
        if self._dtype_of(name) != FP8:
            return inputs[name]
        return arrays.widened(inputs[name], self._factor_of_each(inputs, name))

    def _factor_of_each(self, inputs, name):
        factors, values = inputs[name + "_scale"], inputs[name]
        if kind_of(self.op) == ATTENTION:
            return factors[:, None]
        if factors.ndim == 1:
            return factors[:, None, None] if self._bsr(name) else factors
        rows, cols = values.shape[-2:]
        box = [part or whole for part, whole in zip(self.box_of(name), (rows, cols), strict=True)]
        return arrays.spread(factors, (rows, cols), box)

    @cached_property
    def stacked_lists(self):
        """Counts [1, heads, rows] and indices with one dimension more, on the device. `heads` is
        the number of KV heads if lists are per KV head, and 1 if all heads share them."""
        p = self.params
        group = p["h"] // p["hk"] if p["lists"] == "per_kv_head" else 1
        return stacked(self.lists[::group], None, self.device)

    @property
    def longest_row(self):
        return max(1, *(int(one.counts.max(initial=0)) for one in self.lists))

    @cached_property
    def offsets_array(self):
        return arrays.integers(self.offsets, self.device)

    @cached_property
    def useful_flops(self):
        if self.op in ATTENTION_PASSES:
            return flops.attention_flops(self.params, self.lists, self.op)
        if self.op in LISTS:
            return 0
        return flops.product_flops(self.op, self.params, self.lists)

    @property
    def dense_flops(self):
        """The operations of a dense product of the same size."""
        return 2 * self.params["m"] * self.params["n"] * self.params["k"]

    def dense(self):
        """The problem of the dense case, with random values everywhere."""
        return Problem(self.case.dense(), self.device, self.cache_bytes)

    def dense_operands(self, inputs):
        """A and B of a set as dense matrices."""
        return tuple(bsr.fill_dense(inputs[name]) if bsr else inputs[name]
                     for name, bsr in (("a", self.bsr_a), ("b", self.bsr_b)))

    @cached_property
    def reference(self):
        return make_reference(self)

    def poison(self):
        """Fills the outputs of the first set with NaN, to show elements that no run writes."""
        written = GRADIENTS if self.op == "attention_backward" else ("out",)
        for name in written:
            if name in self.sets[0]:
                self.sets[0][name][...] = float("nan")
