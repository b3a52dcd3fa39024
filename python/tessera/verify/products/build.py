"""Tensors of a drawn product: views into larger buffers. All that must not be read is NaN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import tessera

from ..calls import Call
from ..memory import NAN_BITS, Buffer, Made, words
from ..numbers import DTYPES, FP8_DTYPES, LARGEST
from .draw import FP8, Blocks, Drawn, Layout, Side

LIST_GUARD = 64  # entries before and after a list
NOTHING = (1 << 31) - 1  # fills them
WIDE = 8  # "wide" values are multiplied by two to the power of -8 to 8
WIDE_FP8 = 3
LARGEST_INTEGER = 8
FACTOR_BLOCK = 128
EXTREME = 30  # factors of any size are two to the power of -30 to 30
SHARE_OF_ODD_FACTORS = 0.15  # of zeros or NaN, where there are some


@dataclass
class Boxes:
    """The elements of a matrix that share a factor."""

    scale: Tensor  # [batch|1, factors down, factors across], as the product sees the matrix
    down: Tensor  # of each row, where its factors are
    across: Tensor  # of each column

    @property
    def each(self) -> Tensor:
        """The factor of each element, in f64."""
        return self.scale[:, self.down][..., self.across].double()

    @property
    def mT(self) -> Boxes:
        return Boxes(self.scale.mT, self.across, self.down)

    def spoil(self, needed: Tensor) -> None:
        """Writes NaN to the factors that no element of [batch|1, rows, cols] needs."""
        if self.scale.shape[0] == 1:
            needed = needed.any(0, keepdim=True)
        found = needed.int()  # where elements need a factor, by rows, then by columns
        for axis, (at, size) in enumerate(
                zip((self.down, self.across), self.scale.shape[1:], strict=True), 1):
            shape = (*found.shape[:axis], size, *found.shape[axis + 1 :])
            found = found.new_zeros(shape).index_add_(axis, at, found)
        self.scale.masked_fill_(found == 0, torch.nan)


@dataclass
class Matrix:
    """An operand: what the library reads, and the numbers that it has to find there."""

    given: Any  # a tensor or a BsrMatrix
    option: bool  # transpose_a or transpose_b
    values: Tensor  # f64 [batch|1, rows, cols], as the product sees it, times their factors
    stored: Tensor | None = None  # bool, the same shape; None: every element
    memory: Tensor | None = None  # of a dense one: the same shape, where the library reads
    scale: Tensor | None = None  # the factors of FP8, as the library reads them
    boxes: Boxes | None = None  # of a dense one: which elements share one of them


@dataclass
class Built:
    drawn: Drawn
    a: Matrix
    b: Matrix
    pattern: Tensor | None  # bool [sets, block rows, block columns] of sddmm's result
    pattern_matrix: Any
    shape: tuple[int, ...]  # of the result, or of its values
    former: Tensor | None  # what beta multiplies, of that shape
    c: Tensor | None
    bias: Tensor | None
    offsets: Tensor | None  # of groups
    device: Any
    _plan: Any = None  # a GPU may still work with its memory

    def outputs(self) -> tuple[Buffer | Made]:
        d = self.drawn
        if not d.given_out or d.op == "spgemm":
            return (Made(),)
        buffer = _place(self.shape, d.out, DTYPES[d.out_dtype], self.device,
                        d.op == "sddmm")
        if self.former is not None and (d.op == "sddmm" or d.c in (None, "out")):
            buffer.tensor.copy_(self.former)
        return (buffer,)

    def call(self, out: Buffer | Made) -> Call:
        d = self.drawn
        tensor = None if isinstance(out, Made) else out.tensor
        a, b = self.a.given, self.b.given
        if d.op == "linear":
            options: dict[str, Any] = {"bias": self.bias, "activation": d.activation,
                                       "out_dtype": self.out_dtype}
            if d.lead is not None:
                a = a.reshape(*d.lead, d.k)
            options |= self._scales("x_scale", "weight_scale")
            return "linear", (a, b), options
        options = {"transpose_a": self.a.option, "transpose_b": self.b.option, "alpha": d.alpha,
                   "out_dtype": self.out_dtype}
        if d.op == "spgemm":
            return "spgemm", (a, b), options
        options |= {"beta": d.beta, "out": tensor}
        if tensor is not None:
            del options["out_dtype"]
        if d.op == "sddmm":
            return "sddmm", (a, b, self.pattern_matrix), options
        options |= {"c": tensor if d.c == "out" else self.c, "bias": self.bias,
                    "bias_axis": "row" if d.bias_rows else "column", "activation": d.activation,
                    "group_offsets": self.offsets, "group_axis": "inner" if d.inner else "rows",
                    **self._scales("a_scale", "b_scale")}
        return "bsr_matmul" if d.op == "bsr_matmul" else "matmul", (a, b), options

    def _scales(self, *names: str) -> dict[str, Tensor]:
        return {name: side.scale for name, side in zip(names, (self.a, self.b), strict=True)
                if side.scale is not None}

    @property
    def out_dtype(self) -> torch.dtype:
        return DTYPES[self.drawn.out_dtype]

    def run(self, out: Buffer | Made, kernel: str | None = None,
            backend: str | None = None) -> None:
        name, arguments, options = self.call(out)
        options |= {"kernel": kernel, "backend": backend}
        if self.drawn.op == "spgemm":
            result, numeric = tessera.products.spgemm_symbolic(*arguments, **options)
            result.values.fill_(torch.nan)
            numeric()
        elif self.drawn.planned:
            self._plan = tessera.plan(name, *arguments, **options)
            self._plan.prepare()
            given = None if isinstance(out, Made) else out.tensor
            result = self._plan.run(*arguments[:2], out=given)
        else:
            result = getattr(tessera, name)(*arguments, **options)
        if isinstance(out, Made):
            out.take(result)


def _strides(shape: tuple[int, ...], layout: Layout, blocks: bool) -> tuple[int, ...]:
    """Of [.., rows, cols]. Of blocks, padding lies between blocks instead of lines."""
    rows, cols = max(1, shape[-2]), max(1, shape[-1])
    padding = 0 if blocks else layout.padding

    def up(distance: int) -> int:
        return -(-distance // layout.multiple) * layout.multiple

    if layout.columns:
        pitch = up(rows * layout.step + padding)
        strides = [layout.step, pitch]
        step = cols * pitch
    else:
        pitch = up(cols * layout.step + padding)
        strides = [pitch, layout.step]
        step = rows * pitch
    more = [layout.padding if blocks else layout.batch_padding, layout.batch_padding]
    for size, gap in zip(reversed(shape[:-2]), more, strict=False):
        step = up(step + gap)
        strides.insert(0, 0 if layout.shared and not blocks else step)
        step *= max(1, size)
    return tuple(strides)


def _place(shape: tuple[int, ...], layout: Layout, dtype: torch.dtype, device: Any,
           blocks: bool = False) -> Buffer:
    if len(shape) == 1:
        return Buffer(shape, (1,), dtype, device, layout.offset)
    return Buffer(shape, _strides(shape, layout, blocks), dtype, device, layout.offset)


class Maker:
    """Makes what a drawn product consists of."""

    def __init__(self, d: Drawn, device: Any) -> None:
        self.d, self.device = d, device
        self.generator = torch.Generator(device).manual_seed(d.seed)
        self.index = torch.int32 if d.index == "i32" else torch.int64

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def values(self, shape: tuple[int, ...], kind: str, exponent: int, dtype: str) -> Tensor:
        def integers(low: int, high: int) -> Tensor:
            return torch.randint(low, high + 1, shape, generator=self.generator,
                                 device=self.device)

        x = torch.randn(shape, generator=self.generator, device=self.device)
        if kind == "wide":
            wide = WIDE_FP8 if dtype in FP8_DTYPES else WIDE
            x = torch.ldexp(x, integers(-wide, wide))
        elif kind == "positive":
            x = x.abs()
        elif kind == "integers":
            x = integers(-LARGEST_INTEGER, LARGEST_INTEGER).float()
        x = x.mul_(2.0**exponent)
        if dtype in FP8_DTYPES:
            return x.clamp_(-LARGEST[FP8], LARGEST[FP8]).to(FP8_DTYPES[dtype])
        if dtype == "f16":
            x = x.clamp_(-LARGEST[dtype], LARGEST[dtype])
        return x.to(DTYPES[dtype])

    def operand(self, side: Side, rows: int, cols: int) -> Matrix:
        """An operand of a product that sees it as [rows, cols]."""
        if side.transposed:
            rows, cols = cols, rows
        made = self._dense(side, rows, cols) if side.blocks is None else self._sparse(
            side, side.blocks, rows, cols)
        if not side.transposed:
            return made
        given, option, scale = made.given, True, made.scale
        if self.d.op == "linear":
            option = False  # which multiplies by the transpose
        elif side.view:
            given, option = given.mT if side.blocks is None else given.T, False
            if scale is not None and side.blocks is None and scale.dim() > 1:
                scale = scale.mT
        return Matrix(given, option, made.values.mT, _transposed(made.stored),
                      _transposed(made.memory), scale, made.boxes and made.boxes.mT)

    def dtype_of(self, side: Side) -> tuple[str, torch.dtype]:
        name = side.dtype or self.d.dtype
        return name, {**DTYPES, **FP8_DTYPES}[name]

    def _dense(self, side: Side, rows: int, cols: int) -> Matrix:
        shape = (side.batch, rows, cols) if side.batch else (rows, cols)
        name, dtype = self.dtype_of(side)
        tensor = _place(shape, side.layout, dtype, self.device).tensor
        batched = tensor if side.batch else tensor[None]
        memory = batched[:1] if side.layout.shared else batched
        values = self.values(tuple(memory.shape), side.values, side.exponent, name)
        memory.copy_(values)
        made = Matrix(tensor, False, values.double(), None, memory)
        if side.factors != "none":
            self._scale_dense(made, side, rows, cols)
        return made

    def _scale_dense(self, made: Matrix, side: Side, rows: int, cols: int) -> None:
        """Gives a dense operand factors, as it is stored."""
        lines_are_rows = (side is self.d.a) != side.transposed
        lines, depth = (rows, cols) if lines_are_rows else (cols, rows)
        box = {"line": (1, None), "1x128": (1, FACTOR_BLOCK),
               "128x128": (FACTOR_BLOCK, FACTOR_BLOCK)}.get(side.factors, (None, None))
        counts, places = [], []
        for length, one in zip((lines, depth), box, strict=True):
            counts.append(1 if one is None else -(-length // one))
            places.append(torch.arange(length, device=self.device) // (one or max(1, length)))
        if not lines_are_rows:
            counts.reverse()
            places.reverse()
        own = side.batch and not side.layout.shared and self.d.seed % 4
        shape = (1,) if side.factors == "tensor" else (
            (side.batch, *counts) if own else tuple(counts))
        made.scale = self.factors(shape, side)
        made.boxes = Boxes(made.scale.view(1, 1, 1) if len(shape) == 1 else
                           made.scale if len(shape) == 3 else made.scale[None], *places)
        made.values = made.values * made.boxes.each

    def factors(self, shape: tuple[int, ...], side: Side) -> Tensor:
        """Random factors; the memory around them is NaN."""
        strides: list[int] = []
        step = 1
        for size in reversed(shape):
            strides.insert(0, step)
            step = step * max(1, size) + (self.d.seed % 3 if len(shape) > 1 else 0)
        scale = Buffer(shape, tuple(strides), torch.float32, self.device).tensor
        made = torch.randn(shape, generator=self.generator, device=self.device)
        odd = self.uniform(*shape) < SHARE_OF_ODD_FACTORS
        if side.factor_kind == "extreme":
            made = torch.ldexp(made.abs() + 0.5, torch.randint(
                -EXTREME, EXTREME, shape, generator=self.generator, device=self.device))
        else:
            made = made.div_(2).exp_().mul_(2.0**-side.exponent)
        if side.factor_kind in ("zeros", "nan"):
            made.masked_fill_(odd, 0.0 if side.factor_kind == "zeros" else torch.nan)
        return scale.copy_(made)

    def _sparse(self, side: Side, blocks: Blocks, rows: int, cols: int) -> Matrix:
        mask = self.mask(blocks, max(1, side.batch), rows, cols)
        own = side.batch and blocks.form in ("own_values", "own_lists", "repeated")
        if own:
            mask = mask.expand(side.batch, -1, -1)
        shape = (*mask.shape, blocks.rows, blocks.cols)
        name, dtype = self.dtype_of(side)
        grid = self.values(shape, side.values, side.exponent, name)
        values = words(grid)[mask].view(dtype)
        if own:
            values = values.unflatten(0, (side.batch, -1)) if mask.numel() else values.new_zeros(
                side.batch, 0, *values.shape[1:])
        placed = _place(tuple(values.shape), replace(side.layout, shared=False),
                        dtype, self.device, blocks=True).tensor
        placed.copy_(values)
        matrix = tessera.BsrMatrix(placed, *self.lists(mask, blocks.form), rows, cols)
        if self.d.op == "linear" and not side.transposed:
            matrix = matrix.T
        stored = mask[..., None, None].expand(shape)
        wide, scale = grid.double(), None
        if side.factors != "none":
            of_blocks = tuple(values.shape[:-2]) if side.factors == "stored" else (1,)
            scale = self.factors(of_blocks, side)
            each = torch.zeros(mask.shape, dtype=torch.float64, device=self.device)
            each[mask] = scale.double().flatten() if side.factors == "stored" else scale.double()
            wide *= each[..., None, None]
        return Matrix(matrix, False, _flat(wide.masked_fill_(~stored, 0)), _flat(stored),
                      scale=scale)

    def mask(self, blocks: Blocks, matrices: int, rows: int, cols: int) -> Tensor:
        """Which blocks are stored: bool [sets, block rows, block columns]."""
        sets = matrices if blocks.form in ("own_lists", "pool") else 1
        down, across = rows // blocks.rows, cols // blocks.cols
        shape = (sets, down, across)
        i = torch.arange(down, device=self.device)[:, None]
        j = torch.arange(across, device=self.device)
        chance = self.uniform(*shape)
        first = self.d.seed % max(1, down)
        stored = {
            "random": lambda: chance < blocks.density,
            "banded": lambda: (j - i * across / max(1, down)).abs() <= blocks.density * across / 2,
            "power_law": lambda: chance < 1 / (1 + (i + first) % max(1, down)),
            "full": lambda: chance >= 0,
            "empty": lambda: chance < 0,
            "one_row": lambda: i == first}[blocks.pattern]().expand(shape).clone()
        if blocks.pattern not in ("full", "one_row"):
            stored &= self.uniform(sets, down, 1) >= blocks.empty_rows
            stored &= self.uniform(sets, 1, across) >= blocks.empty_cols
        if blocks.form == "own_lists":  # as many blocks in each matrix
            ranks = self.uniform(sets, down * across).argsort(-1)
            stored[1:] = (ranks < stored[0].sum()).view(shape)[1:]
        return stored

    def lists(self, mask: Tensor, form: str) -> tuple[Tensor, Tensor]:
        """row_offsets and col_indices."""
        counts = mask.sum(-1)
        if form == "pool":
            ends = counts.flatten().cumsum(0).view(counts.shape)
            begins = ends[:, :1] - counts[:, :1] if counts.shape[1] else ends.new_zeros(
                counts.shape[0], 1)
            return self.list(torch.cat((begins, ends), 1)), self.list(mask.nonzero()[:, -1])
        if form in ("shared", "own_values"):
            mask, counts = mask[0], counts[0]
        offsets = torch.nn.functional.pad(counts.cumsum(-1), (1, 0))
        columns = mask.nonzero()[:, -1]
        if mask.dim() == 3:
            columns = columns.view(mask.shape[0], -1) if mask.shape[1] * mask.shape[2] else (
                columns.new_zeros(mask.shape[0], 0))
        return self.list(offsets), self.list(columns)

    def list(self, entries: Tensor) -> Tensor:
        """A list with other numbers around it."""
        memory = torch.full((entries.numel() + 2 * LIST_GUARD,), NOTHING, dtype=self.index,
                            device=self.device)
        placed = memory[LIST_GUARD : LIST_GUARD + entries.numel()].view(entries.shape)
        return placed.copy_(entries)

    def added(self, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Values of c, of a bias or of a former result."""
        return self.values(shape, "normal", self.d.added_exponent, dtype)


def _transposed(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.mT


def _flat(grid: Tensor) -> Tensor:
    """[batch, block rows, block columns, r, c] as matrices."""
    batch, down, across, r, c = grid.shape
    return grid.transpose(2, 3).reshape(batch, down * r, across * c)


def build(d: Drawn, device: Any) -> Built:
    maker = Maker(d, device)
    a, b = maker.operand(d.a, d.m, d.k), maker.operand(d.b, d.k, d.n)
    pattern = matrix = None
    shape: tuple[int, ...] = (d.batch, d.m, d.n) if d.batch else (d.m, d.n)
    if d.op == "linear" and d.lead is not None:
        shape = (*d.lead, d.n)
    if d.pattern is not None:
        pattern = maker.mask(d.pattern, max(1, d.batch), d.m, d.n)
        if d.pattern.form in ("own_values", "own_lists", "repeated"):
            pattern = pattern.expand(d.batch, -1, -1)
        shape = (int(pattern.sum()), d.pattern.rows, d.pattern.cols)
        if d.batch and d.pattern.form != "pool":
            shape = (d.batch, shape[0] // d.batch, *shape[1:])
    former = maker.added(shape, d.out_dtype) if d.beta or d.op == "sddmm" else None
    c = bias = offsets = None
    if d.c in DTYPES:
        c = _place(shape, d.c_layout, DTYPES[d.c], device).tensor
        if d.beta:
            former = maker.added(shape, d.c)
            memory = c[:1] if d.c_layout.shared and len(shape) == 3 else c
            if memory is not c:
                former = former[:1].expand(shape)
            memory.copy_(former[: memory.shape[0]])
    if d.bias is not None:
        bias = _bias(maker, d)
    if d.groups is not None:
        offsets = maker.list(torch.tensor([d.before, *(end for _, end in group_ranges(d))],
                                          device=device))
    if pattern is not None and d.pattern is not None:
        values = former if not d.given_out and d.beta else torch.full(
            shape, torch.nan, dtype=DTYPES[d.out_dtype], device=device)
        lists = maker.lists(pattern, d.pattern.form)
        matrix = tessera.BsrMatrix(values, *lists, d.m, d.n)
    if not d.beta:
        former = None
    built = Built(d, a, b, pattern, matrix, shape, former, c, bias, offsets, device)
    _spoil_what_is_not_needed(built)
    return built


def _bias(maker: Maker, d: Drawn) -> Tensor:
    length = d.m if d.bias_rows else d.n
    shape = (d.matrices, length) if d.bias_batch else (length,)
    pitch = d.bias_step * max(1, length)
    strides = (pitch, d.bias_step)[-len(shape) :]
    dtype = str(d.bias)
    tensor = Buffer(shape, strides, DTYPES[dtype], maker.device, d.bias_offset).tensor
    return tensor.copy_(maker.added(shape, dtype))


def group_ranges(d: Drawn) -> list[tuple[int, int]]:
    ranges, end = [], d.before
    for length in d.groups or ():
        ranges.append((end, end + length))
        end += length
    return ranges


def _spoil_what_is_not_needed(built: Built) -> None:
    """Writes NaN to elements of dense operands that no element of the result needs."""
    d, a, b = built.drawn, built.a, built.b
    if d.groups is not None:
        return _spoil_groups(built)
    if built.pattern is not None and d.pattern is not None:
        rows = built.pattern.any(2).repeat_interleave(d.pattern.rows, 1)
        cols = built.pattern.any(1).repeat_interleave(d.pattern.cols, 1)
        _keep(a, rows[:, :, None])
        _keep(b, cols[:, None, :])
        return
    if b.stored is not None:
        _keep(a, b.stored.any(2)[:, None, :])
    if a.stored is not None:
        _keep(b, a.stored.any(1)[:, :, None])


def _keep(matrix: Matrix, needed: Tensor) -> None:
    """NaN where a dense operand and its factors are not needed; `needed` has a batch, or one set
    for all."""
    if matrix.memory is None:
        return
    if matrix.boxes is not None:
        matrix.boxes.spoil(needed.expand(-1, *matrix.memory.shape[1:]))
    if matrix.memory.shape[0] == 1:
        needed = needed.any(0, keepdim=True)
    words(matrix.memory).masked_fill_(~needed, NAN_BITS)


def _spoil_groups(built: Built) -> None:
    d, a, b = built.drawn, built.a, built.b
    of_a = torch.zeros(1, d.m, d.k, dtype=torch.bool, device=built.device)
    of_b = torch.zeros(max(1, d.b.batch), d.k, d.n, dtype=torch.bool, device=built.device)
    for group, (begin, end) in enumerate(group_ranges(d)):
        if d.inner:
            of_a[..., begin:end] = True
            of_b[:, begin:end] = True
            continue
        matrix = group if d.b.batch > 1 else 0
        of_a[0, begin:end] = True if b.stored is None else b.stored[
            matrix if b.stored.shape[0] > 1 else 0].any(1)
        of_b[matrix] |= begin < end
    _keep(a, of_a)
    _keep(b, of_b)
