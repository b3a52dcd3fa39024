"""Draws a product from a seed: sizes, operands, memory and epilogue, independently. Plain Python,
as for attention; the device decides which dtypes there are and how large a problem may be."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, fields
from typing import Any

from ..attention.draw import single

TEXT = """\
Products (matmul, linear, bsr_matmul, grouped, sddmm, spgemm) draw: sizes from 0 up, many around
multiples of 16 to 256; float16, bfloat16 and float32, results of another dtype; both operands
transposed, by an option or in memory, with rows at any distance, strided, beginning anywhere, in
batches, or one matrix for the whole batch; blocks of 8 to 128, mostly square, some of any size;
random, banded, full and empty patterns, one full row, power laws, empty rows and columns; a batch
of patterns in each of its forms; alpha, beta with c or the former result, bias, activations;
groups of rows or of the inner dimension, some empty; values of all magnitudes, integers, and sums
without cancellation; calls, and plans that are prepared and run.

A product has at most --multiplies multiplications, those of zeros included (on the CPU 2^23, else
2^33), and at most 2^24 numbers per tensor. A larger one loses matrices first, then length.

Products in FP8 (products_fp8) are matmul, linear, bsr_matmul and grouped with operands in
float8_e4m3fn, some in float8_e5m2, each without factors or with random ones: one, per matrix, per
row of a or column of b, per 1x128 or 128x128 elements, per stored block. Factors are usual ones,
or of any size from 2^-30 to 2^30, and some have zeros or NaN among them. Most operands lie along
the depth in rows at multiples of 16 bytes, and most blocks are multiples of 64, as kernels on a GPU
support. Results are in bfloat16, float16 or float32.

Seven in ten problems run a kernel row drawn from those that `explain` accepts, the others the one
that the library chooses (--rows)."""

OPS = ("matmul", "linear", "bsr_matmul", "grouped", "sddmm", "spgemm")
FP8_OPS = ("matmul", "linear", "bsr_matmul", "bsr_matmul", "linear", "grouped")
FP8 = "e4m3"
# Kernels on a GPU multiply float32 only where both operands are dense or both are sparse.
GPU_WITH_F32 = ("matmul", "spgemm")
FLOATS = ("f32", "f16", "bf16")
ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu")
TILES = (16, 32, 48, 64, 96, 128, 192, 256)
BLOCKS = (8, 16, 16, 32, 32, 64, 64, 128, 128)
MOST_NUMBERS = 1 << 24  # per tensor
MOST_BLOCKS = 1 << 20  # positions of a pattern, over its batch
PATTERNS = ("random", "random", "random", "banded", "power_law", "full", "empty", "one_row")
FORMS = ("own_values", "own_lists", "pool", "repeated")  # of a batch of patterns
# Which values of an operand in FP8 share a factor, and what factors are drawn.
DENSE_FACTORS = ("none", "tensor", "matrix", "line", "line", "1x128", "1x128", "128x128")
BLOCK_FACTORS = ("none", "tensor", "stored", "stored")
FACTOR_KINDS = ("usual", "usual", "usual", "extreme", "zeros", "nan")
VALUES = ("normal", "normal", "normal", "normal", "wide", "positive", "integers")


@dataclass
class Layout:
    """How a matrix lies in memory."""

    columns: bool = False  # its columns are contiguous, not its rows
    padding: int = 0  # elements between contiguous lines
    step: int = 1  # elements from one number of a line to the next
    offset: int = 0  # elements from an aligned address to the first number
    batch_padding: int = 0  # elements between matrices of a batch
    shared: bool = False  # one matrix in memory, with a batch stride of 0
    multiple: int = 1  # of elements, that the distances of lines, blocks and matrices are


@dataclass
class Blocks:
    """A block-sparse pattern; its contents follow from the seed."""

    rows: int = 16  # of a block, as stored
    cols: int = 16
    pattern: str = "random"
    density: float = 0.3
    empty_rows: float = 0.0
    empty_cols: float = 0.0
    form: str = "shared"


@dataclass
class Side:
    """An operand."""

    transposed: bool = False
    view: bool = False  # transposed as a view (`T`), not by an option
    batch: int = 0  # matrices; 0: no batch dimension
    blocks: Blocks | None = None  # block-sparse
    layout: Layout = field(default_factory=Layout)
    values: str = "normal"
    exponent: int = 0  # values are multiplied by two to this power
    dtype: str | None = None  # where it is not that of the problem
    factors: str = "none"  # of FP8, see DENSE_FACTORS and BLOCK_FACTORS
    factor_kind: str = "usual"


@dataclass
class Drawn:
    seed: int
    op: str
    dtype: str = "bf16"
    out_dtype: str = "bf16"
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 0  # of the result; 0: no batch dimension
    a: Side = field(default_factory=Side)
    b: Side = field(default_factory=Side)
    pattern: Blocks | None = None  # of the result, in sddmm
    out: Layout = field(default_factory=Layout)
    lead: list[int] | None = None  # leading dimensions of linear's x
    groups: list[int] | None = None  # their lengths, along m or k
    inner: bool = False  # groups divide k
    before: int = 0  # rows before the first group
    after: int = 0  # and after the last one
    alpha: float = 1.0
    beta: float = 0.0
    c: str | None = None  # its dtype, or "out": the result's former contents, named as c
    c_layout: Layout = field(default_factory=Layout)
    bias: str | None = None
    bias_rows: bool = False
    bias_batch: bool = False
    bias_step: int = 1
    bias_offset: int = 0
    added_exponent: int = 0  # of c, bias and former results
    activation: str = "none"
    index: str = "i32"
    planned: bool = False  # plan, prepare and run, instead of a call
    given_out: bool = True  # the result's memory is the verifier's

    @property
    def matrices(self) -> int:
        """Matrices of a batch; for groups, of the operand that has one for each."""
        return len(self.groups) if self.groups is not None else max(1, self.batch)

    @property
    def multiplies(self) -> int:
        if self.groups is not None:
            return self.m * self.n * self.k
        return max(1, self.batch) * self.m * self.n * self.k

    @property
    def numbers(self) -> int:
        """Of the largest tensor, with the zeros of sparse operands."""
        batch = 1 if self.groups is not None else max(1, self.batch)
        b_batch = self.matrices if self.groups is not None and not self.inner else batch
        out_batch = self.matrices if self.groups is not None and self.inner else batch
        return max(batch * self.m * self.k, b_batch * self.k * self.n, out_batch * self.m * self.n)

    def __str__(self) -> str:
        hidden = ("seed", "op", *(("c_layout",) if self.c in (None, "out") else ()))
        said = _said(self, Drawn(self.seed, self.op), hidden)
        return f"{self.op}, seed {self.seed}: {said}"


def _said(one: Any, plain: Any, hidden: tuple[str, ...] = ()) -> str:
    """Fields that are not the plain ones."""
    found = []
    for item in fields(one):
        value, usual = getattr(one, item.name), getattr(plain, item.name)
        if item.name in hidden or value == usual:
            continue
        if isinstance(value, (Side, Layout, Blocks)):
            text = f"({_said(value, type(value)() if usual is None else usual)})"
        else:
            text = str(value).replace(" ", "")
        found.append(f"{item.name}={text}")
    return " ".join(found)


# ---- Sizes -------------------------------------------------------------------------------------


@dataclass
class Extents:
    """m, n and k in whole blocks, so that shrinking keeps them whole."""

    counts: list[int]
    units: list[int]
    aligned: list[bool]
    multiple: int  # of aligned sizes

    def size(self, i: int) -> int:
        size = self.counts[i] * self.units[i]
        step = self.multiple if self.aligned[i] and self.units[i] == 1 else 1
        return -(-size // step) * step


@dataclass
class Room:
    """What a problem may be."""

    device: str
    most: int  # multiplications
    align: bool  # as TMA reads it
    multiple: int = 8  # elements of 16 bytes

    @property
    def most_numbers(self) -> int:
        return min(MOST_NUMBERS, (1 << 16) + self.most // 8)


def _size(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.03:
        return rng.randint(0, 1)
    if kind < 0.18:
        return rng.randint(1, 17)
    if kind < 0.58:
        return rng.choice(TILES) * rng.choice((1, 1, 1, 2, 3)) + rng.choice((-1, 0, 0, 1))
    low, high = (1, 1024) if kind < 0.92 else (512, 8192)
    return math.floor(math.exp(rng.uniform(math.log(low), math.log(high + 1))))


def _count(rng: random.Random, unit: int) -> int:
    size = _size(rng)
    return size if unit == 1 else min(size, 1) and max(1, round(size / unit))


def _draw_sizes(rng: random.Random, d: Drawn, room: Room) -> None:
    """m, n and k, and then a problem as small as it has to be."""
    units = _units(d)
    extents = Extents([_count(rng, unit) for unit in units], units,
                      [room.align and aligned for aligned in (rng.random() < 0.5, True, True)],
                      room.multiple)

    def take() -> None:
        d.m, d.n, d.k = (extents.size(i) for i in range(3))
        if d.groups is not None:
            total = sum(d.groups) + d.before + d.after
            d.m, d.k = (d.m, total) if d.inner else (total, d.k)

    take()
    while (d.multiplies > room.most or d.numbers > room.most_numbers
           or _positions(d) > MOST_BLOCKS):
        grouped = None if d.groups is None else 2 if d.inner else 0
        if d.batch > 1:
            d.batch = (d.batch + 1) // 2
        elif d.groups is not None and len(d.groups) > 4:
            d.groups = d.groups[: (len(d.groups) + 1) // 2]
        else:
            sizes = [d.m, d.n, d.k]
            able = [i for i in range(3) if i == grouped or extents.counts[i] > 1]
            if not able:
                break
            largest = max(able, key=lambda i: sizes[i])
            if largest == grouped and d.groups is not None:
                if max((*d.groups, d.before, d.after)) <= 1:
                    break
                d.groups = [length * 3 // 4 for length in d.groups]
                d.before, d.after = d.before * 3 // 4, d.after * 3 // 4
            else:
                extents.counts[largest] = extents.counts[largest] * 3 // 4
        take()


def _positions(d: Drawn) -> int:
    """Blocks that the largest pattern could store."""
    sides = [(d.a.blocks, d.m * d.k), (d.b.blocks, d.k * d.n), (d.pattern, d.m * d.n)]
    return max(d.matrices * area // (x.rows * x.cols) for x, area in sides if x) if any(
        x for x, _ in sides) else 0


# ---- Operands ----------------------------------------------------------------------------------


def _layout(rng: random.Random, align: bool, written: bool = False) -> Layout:
    layout = Layout(columns=rng.random() < 0.35)
    if rng.random() < 0.3:
        layout.padding = 8 * rng.choice((1, 1, 2, 5, 16))
    if rng.random() < 0.3:
        layout.batch_padding = 8 * rng.randint(1, 9)
    odd = [rng.random() < chance for chance in (0.4, 0.25, 0.08, 0.2)]
    by = rng.randint(1, 9), rng.randint(1, 7), rng.choice((2, 2, 3)), rng.randint(1, 7)
    if not align:
        layout.padding += by[0] * odd[0]
        layout.offset = by[1] * odd[1]
        layout.step = by[2] if odd[2] else 1
        layout.batch_padding += by[3] * odd[3]
    shared = rng.random() < 0.1
    layout.shared = shared and not written
    return layout


def _blocks(rng: random.Random, matrices: int) -> Blocks:
    def side() -> int:
        if rng.random() < 0.85:
            return rng.choice(BLOCKS)
        return rng.choice((24, 48, 96)) if rng.random() < 0.3 else rng.randint(1, 24)

    rows, cols = side(), side()
    blocks = Blocks(rows, rows if rng.random() < 0.7 else cols)
    _draw_pattern(rng, blocks)
    form = rng.choice(FORMS)
    blocks.form = form if matrices > 1 and rng.random() < 0.75 else "shared"
    return blocks


def _draw_pattern(rng: random.Random, blocks: Blocks) -> None:
    blocks.pattern = rng.choice(PATTERNS)
    blocks.density = rng.choice((0.03, 0.1, 0.1, 0.3, 0.6, 1.0))
    blocks.empty_rows = rng.choice((0.0, 0.0, 0.2))
    blocks.empty_cols = rng.choice((0.0, 0.0, 0.2))


def _side(rng: random.Random, d: Drawn, align: bool) -> Side:
    side = Side(transposed=rng.random() < 0.4, layout=_layout(rng, align))
    side.view = rng.random() < 0.4
    side.values = rng.choice(VALUES)
    if rng.random() < 0.3:
        low, high = (-18, 4) if d.dtype == "f16" else (-30, 30)
        side.exponent = rng.randint(low, high)
    return side


def _draw_epilogue(rng: random.Random, d: Drawn, align: bool) -> None:
    if rng.random() < 0.4:
        d.alpha = rng.choice((0.0, -1.0, 2.0, *(single(rng.gauss(0, 1)) for _ in range(4))))
    if rng.random() < 0.3:
        d.beta = rng.choice((1.0, -0.5, *(single(rng.gauss(0, 1)) for _ in range(2))))
    own, other = rng.choice((d.out_dtype, "any")), rng.choice(FLOATS)
    if rng.random() < (0.7 if d.beta else 0.1):
        d.c = rng.choice(("out", other if own == "any" else own)) if d.beta else other
    d.c_layout = _layout(rng, align)
    own, other = rng.choice((d.out_dtype, "any")), rng.choice(FLOATS)
    if rng.random() < 0.4:
        d.bias = other if own == "any" else own
    d.bias_rows, d.bias_batch = rng.random() < 0.35, rng.random() < 0.4
    d.bias_step = 1 if rng.random() < 0.85 else 2
    d.bias_offset = 0 if rng.random() < 0.7 else rng.randint(1, 7)
    if rng.random() < 0.5:
        d.added_exponent = d.a.exponent + d.b.exponent
    if rng.random() < 0.5:
        d.activation = rng.choice(ACTIVATIONS)


# ---- Problems ----------------------------------------------------------------------------------


def draw(op: str, seed: int, device: str, most: int) -> Drawn:
    rng = random.Random(f"{op} {seed}")
    d = Drawn(seed, op)
    half, f32 = rng.choice(("f16", "bf16")), rng.random() < (0.2 if device == "cpu" else 0.1)
    d.dtype = "f32" if f32 and (device == "cpu" or op in GPU_WITH_F32) else half
    other = rng.choice(FLOATS)
    d.out_dtype = d.dtype if rng.random() < 0.7 else other
    align = rng.random() < 0.55  # as TMA reads it
    d.a, d.b = _side(rng, d, align), _side(rng, d, align)
    d.out = _layout(rng, align, written=True)
    d.index = rng.choice(("i32", "i64"))
    d.planned, d.given_out = rng.random() < 0.25, rng.random() < 0.8
    _draw_epilogue(rng, d, align)
    if rng.random() < 0.4:
        d.batch = rng.choice((1, 2, 3, 4, 4, 7, 16, rng.randint(20, 300)))
    _SHAPES[op](rng, d, Room(device, most, align))
    if d.beta and d.c in (None, "out") and op != "sddmm":
        d.given_out = True  # it holds what beta multiplies
    return d


def draw_fp8(seed: int, device: str, most: int) -> Drawn:
    rng = random.Random(f"fp8 {seed}")
    d = Drawn(seed, rng.choice(FP8_OPS), dtype=FP8)
    d.out_dtype = rng.choice(("bf16", "bf16", "f16", "f32"))
    align = rng.random() < 0.85
    d.a, d.b = _side(rng, d, align), _side(rng, d, align)
    d.out = _layout(rng, align, written=True)
    d.index = rng.choice(("i32", "i64"))
    d.planned, d.given_out = rng.random() < 0.25, rng.random() < 0.8
    _draw_epilogue(rng, d, align)
    if rng.random() < 0.3:
        d.batch = rng.choice((1, 2, 3, 4, 7))
    _SHAPES[d.op](rng, d, Room(device, most, align, multiple=16))
    for side, is_left in ((d.a, True), (d.b, False)):
        _draw_factors(rng, d, side)
        if align and not (is_left and d.lead is not None):
            # Contiguous along the depth.
            side.layout = Layout(columns=is_left == side.transposed, multiple=16,
                                 padding=side.layout.padding, shared=side.layout.shared,
                                 batch_padding=side.layout.batch_padding)
    if d.beta and d.c in (None, "out"):
        d.given_out = True
    return d


def _draw_factors(rng: random.Random, d: Drawn, side: Side) -> None:
    side.exponent = rng.randint(0, 6)  # factors make up for it
    side.dtype = "e5m2" if rng.random() < 0.08 else None
    side.factors = rng.choice(DENSE_FACTORS if side.blocks is None else BLOCK_FACTORS)
    side.factor_kind = rng.choice(FACTOR_KINDS)
    if side is d.a and d.lead == [] and side.factors != "none":
        side.factors = "tensor"  # of a vector


def _multiples_of_64(rng: random.Random, blocks: Blocks) -> None:
    """Three in four blocks of FP8 are what kernels on a GPU support."""
    if rng.random() < 0.75:
        blocks.rows, blocks.cols = (64 * -(-side // 64) for side in (blocks.rows, blocks.cols))


def _batches(rng: random.Random, d: Drawn) -> None:
    """Which operands have the batch; an operand of one matrix serves all."""
    one, other = rng.random(), rng.random()
    shares = (0, 0) if not d.batch else (one < 0.25, other < 0.25)
    for side, shared, dice in ((d.a, shares[0], one), (d.b, shares[1], other)):
        side.batch = d.batch if not shared else (1 if dice < 0.1 else 0)
    if d.batch and d.a.batch <= 1 and d.b.batch <= 1:
        d.a.batch = d.batch


def _matmul(rng: random.Random, d: Drawn, room: Room) -> None:
    _draw_sizes(rng, d, room)
    _batches(rng, d)


def _bsr_matmul(rng: random.Random, d: Drawn, room: Room) -> None:
    both, left = rng.random() < 0.06, rng.random() < 0.5
    blocks = [_blocks(rng, d.batch) for _ in range(2)]
    if both or left:
        d.a.blocks = blocks[0]
    if both or not left:
        d.b.blocks = blocks[1]
    # A GPU's kernels walk the rows of a stored a and the columns of a transposed b.
    if rng.random() < 0.5:
        d.a.transposed = d.a.transposed and not d.a.blocks
        d.b.transposed = d.b.transposed or bool(d.b.blocks)
    if d.dtype == FP8:
        for one in blocks:
            _multiples_of_64(rng, one)
    if both:  # one depth of blocks, so that every depth is whole blocks of both
        _meet(d.a, d.b)
        d.planned = False  # of two sparse operands there is no plan
    _draw_sizes(rng, d, room)
    _batches(rng, d)
    _simplify(d)


def _meet(a: Side, b: Side) -> None:
    """Gives the blocks of b as many rows, as read, as the blocks of a have columns."""
    if a.blocks is None or b.blocks is None:
        return
    depth = a.blocks.rows if a.transposed else a.blocks.cols
    if b.transposed:
        b.blocks.cols = depth
    else:
        b.blocks.rows = depth


def _units(d: Drawn) -> list[int]:
    """What m, n and k are multiples of."""
    m = n = k = 1
    if d.a.blocks:
        m, k = d.a.blocks.rows, d.a.blocks.cols
        m, k = (k, m) if d.a.transposed else (m, k)
    if d.b.blocks:
        k, n = d.b.blocks.rows, d.b.blocks.cols
        k, n = (n, k) if d.b.transposed else (k, n)
    if d.pattern:
        m, n = d.pattern.rows, d.pattern.cols
    return [m, n, k]


def _simplify(d: Drawn) -> None:
    """An operand without a batch has one pattern."""
    for side in (d.a, d.b):
        if side.blocks and side.batch <= 1:
            side.blocks.form = "shared" if side.batch == 0 else "own_values"
        elif side.blocks and side.blocks.form == "shared":
            side.blocks.form = "own_values"  # lists are shared


def _linear(rng: random.Random, d: Drawn, room: Room) -> None:
    """x [.., k] times the transpose of a weight [n, k]."""
    lead = [rng.choice((1, 2, 3, 5)) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    d.b.blocks = _blocks(rng, 0) if rng.random() < 0.6 else None
    if d.b.blocks and d.dtype == FP8:
        _multiples_of_64(rng, d.b.blocks)
    d.b.transposed = d.b.blocks is None or rng.random() < 0.8  # else as a view of [k, n]
    d.a.transposed = False
    d.batch, d.beta, d.c, d.alpha = 0, 0.0, None, 1.0
    d.bias_rows = d.bias_batch = False
    d.out = Layout()  # as plans of linear expect it
    _draw_sizes(rng, d, room)
    if d.m and lead:
        rest = max(1, d.m // math.prod(lead))
        d.lead = [*lead, rest]
        d.m = math.prod(d.lead)
        d.a.layout = Layout()
    elif rng.random() < 0.03:
        d.lead, d.m = [], 1  # a vector
        d.a.layout = Layout()
    d.planned = d.given_out = d.planned or (d.given_out and rng.random() < 0.5)


def _grouped(rng: random.Random, d: Drawn, room: Room) -> None:
    """Rows of a among the matrices of b, or the inner dimension of both in pieces."""
    d.inner = rng.random() < 0.3
    d.batch = 0
    count = rng.choice((1, 2, 3, 4, 4, 8, 8, 16, 64))
    longest = max(1, _size(rng))
    law = rng.random()
    d.groups = [
        0 if rng.random() < 0.2 else
        max(1, longest // (i + 1)) if law < 0.3 else longest if law < 0.5
        else rng.randint(1, longest) for i in range(count)]
    if law > 0.5:
        rng.shuffle(d.groups)
    outside = rng.choice((0, 1, 37, 150)), rng.choice((0, 1, 37, 150))
    # Rows may belong to no group, except on a CPU, where offsets are checked.
    if rng.random() < 0.15 and room.device == "cuda" and not d.inner:
        d.before, d.after = outside
    blocks = _blocks(rng, count)
    if not d.inner and rng.random() < 0.45:
        d.b.blocks = blocks
        # What kernels on a GPU support.
        d.b.transposed = d.b.transposed or rng.random() < 0.6
        if rng.random() < 0.5:
            blocks.rows, blocks.cols = (64 * -(-side // 64) for side in (blocks.rows, blocks.cols))
    _draw_sizes(rng, d, room)
    d.b.batch = 0 if d.inner else len(d.groups)
    d.batch = len(d.groups) if d.inner else 0
    d.bias_batch = d.bias_batch and not (d.bias_rows and not d.inner)
    _simplify(d)


def _sddmm(rng: random.Random, d: Drawn, room: Room) -> None:
    d.pattern = _blocks(rng, d.batch)
    _draw_sizes(rng, d, room)
    d.bias, d.activation, d.c = None, "none", None
    _batches(rng, d)
    if d.batch > 1 and d.pattern.form == "shared":
        d.pattern.form = "own_values"
    elif d.batch <= 1:
        d.pattern.form = "own_values" if d.batch else "shared"
    d.out.columns = d.out.columns and rng.random() < 0.3


def _spgemm(rng: random.Random, d: Drawn, room: Room) -> None:
    d.batch, d.bias, d.activation, d.beta, d.c = 0, None, "none", 0.0, None
    d.planned, d.given_out = False, False
    d.a.blocks, d.b.blocks = _blocks(rng, 0), _blocks(rng, 0)
    if rng.random() < 0.5:  # square blocks of one size, mostly one that tensor cores multiply
        size = rng.choice((64, 128, d.a.blocks.rows))
        for blocks in (d.a.blocks, d.b.blocks):
            blocks.rows = blocks.cols = size
    _meet(d.a, d.b)
    _draw_sizes(rng, d, room)


_SHAPES = {"matmul": _matmul, "linear": _linear, "bsr_matmul": _bsr_matmul, "grouped": _grouped,
           "sddmm": _sddmm, "spgemm": _spgemm}
