"""Draws a problem from a seed: sizes and options, independently. Plain Python, so that a seed gives
the same problem on every device."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

TEXT = """\
Attention draws, independently: float16 or bfloat16 (on the CPU also float32), sometimes a float32
result; head dimensions of multiples of 8 up to 256, mostly 64 and 128, mostly the same for values;
1 to 8 KV heads with 1 to 16 query heads each; 1 to 16 sequences; lengths 0 to 4096, log-uniform, a
tenth of them up to 16384; queries and keys dense or packed; causality, windows, used ranges of
keys, positions (some far from zero), softcap, sinks, scale (also negative); a quarter of dense keys
in pages of 8 to 256, in any order, with unused pages; batch_invariant, mostly with pages; block
masks with sides of multiples of 64 up to 256, of 16, 32, 48 or 96, or sometimes of any size; full
and partial lists in any order, with and without bits, shared or per sequence, head or KV head,
with empty rows; both layouts, any order in memory, padding by multiples of 16 bytes.

A problem has at most --pairs (query, key) pairs over its heads (on the CPU 2^21, else 2^28) and
about twice as many numbers (at most 2^26). A larger one loses sequences and heads first, then
length. So most problems are small and few are large.

Unused queries, keys and values, padding, and outputs before the run are NaN.

Gradients of attention (attention_backward): the same problems; dout with strides of its own or of
zero, the gradient of LSE, which gradients are wanted, their order in memory and sometimes float32
for them.

Attention in FP8 (attention_fp8): the same, with queries, keys and values in float8_e4m3fn, each
without factors or with random ones: one, per head, per sequence (or page) and head, or such for 64
or 128 rows; results in bfloat16, float16 or float32; head dimensions mostly multiples of 16; a
quarter of dense values with contiguous keys in place of rows."""

USUAL_DIMS = (64, 128)
OTHER_DIMS = (32, 72, 80, 96, 192, 256)
LONGEST, LONG = 16384, 4096
MOST_NUMBERS = 1 << 26
MOST_CELLS = 1 << 21  # blocks of a mask, in all its sets of lists
FAR = 1 << 40
PAGES = (8, 16, 16, 32, 64, 64, 128, 256)
DTYPES = {"cpu": ("f16", "bf16", "f32"), "cuda": ("f16", "bf16")}
FP8 = "e4m3"
# Which values of q, k or v share a factor. "outer" is per sequence (or page) and head, and so are
# those for a number of rows; packed tensors have no outer dimension.
FACTORS = ("none", "tensor", "head", "outer", "64", "128")


@dataclass
class Blocks:
    """The parameters of a block mask; its contents follow from the seed."""

    block_q: int
    block_kv: int
    batch: int
    heads: int
    density: float
    partial: float  # share of partial blocks among the stored ones
    empty_rows: float
    tiles: int  # number of bit tiles; 0: partial blocks without bits


@dataclass
class Drawn:
    seed: int
    dtype: str = "bf16"
    out_dtype: str = "bf16"
    dim: int = 64
    dim_v: int = 64
    heads: int = 1
    kv_heads: int = 1
    q_lengths: list[int] = field(default_factory=list)
    kv_lengths: list[int] = field(default_factory=list)
    packed_q: bool = False
    packed_kv: bool = False
    max_q_length: int = 0
    max_kv_length: int = 0
    tail: int = 0  # rows of packed keys after the last sequence
    q_tail: int = 0  # rows of packed queries after the last sequence
    index: str = "i32"
    causal: bool = False
    window_left: int | None = None
    window_right: int | None = None
    kv_begin: list[int] | None = None
    kv_end: list[int] | None = None
    q_position: list[int] | None = None
    kv_position: list[int] | None = None
    scale: float | None = None
    softcap: float = 0.0
    sinks: str | None = None
    mask: Blocks | None = None
    layout: str = "blhd"
    heads_first: dict[str, bool] = field(default_factory=dict)  # the order in memory
    padding: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # in units of 16 bytes
    v_by_keys: bool = False  # the keys of v in FP8 are contiguous, not its rows
    page: int = 0  # keys per page; 0: no pages
    more_pages: int = 0  # entries of the page table that no sequence uses
    batch_invariant: bool = False
    lse: bool = True
    nan_queries: bool = False  # NaN in queries that see no key
    factors: dict[str, str] = field(default_factory=dict)  # of q, k and v in FP8, see FACTORS

    @property
    def batch(self) -> int:
        return len(self.q_lengths)

    @property
    def pairs(self) -> int:
        lengths = zip(self.q_lengths, self.kv_lengths, strict=True)
        return self.heads * sum(q * k for q, k in lengths)

    @property
    def numbers(self) -> int:
        width = self.dim + self.dim_v
        return width * (sum(self.q_lengths) * self.heads + sum(self.kv_lengths) * self.kv_heads)

    @property
    def q_bound(self) -> int:
        """The number of queries that block masks have to cover."""
        if not self.packed_q:
            return self.q_lengths[0]
        return self.max_q_length or sum(self.q_lengths) + self.q_tail

    @property
    def kv_bound(self) -> int:
        if not self.packed_kv:
            return self.kv_lengths[0]
        return self.max_kv_length or sum(self.kv_lengths) + self.tail

    def __str__(self) -> str:
        plain = Drawn(self.seed)
        hidden = ("seed", "padding", "heads_first")
        said = [f"{name}={_short(value)}" for name, value in vars(self).items()
                if name not in hidden and value != getattr(plain, name)]
        padded = [name for name, padding in self.padding.items() if any(padding)]
        turned = [name for name, first in self.heads_first.items() if first]
        said += [f"padded={'+'.join(padded)}"] if padded else []
        said += [f"heads_first={'+'.join(turned)}"] if turned else []
        return f"seed {self.seed}: " + " ".join(said)


def _short(value: object) -> str:
    if isinstance(value, Blocks):
        return (f"{value.block_q}x{value.block_kv}(sets {value.batch}x{value.heads}, density "
                f"{value.density:g}, partial {value.partial:g}, tiles {value.tiles})")
    return str(value).replace(" ", "")


def draw(seed: int, dtypes: tuple[str, ...], most_pairs: int) -> Drawn:
    rng = random.Random(f"attention {seed}")
    d = Drawn(seed)
    d.dtype = rng.choice(dtypes)
    d.out_dtype = "f32" if rng.random() < 0.08 else d.dtype
    d.dim = _dim(rng)
    d.dim_v = d.dim if rng.random() < 0.65 else _dim(rng)
    d.kv_heads = rng.choice((1, 1, 2, 2, 3, 4, 8))
    d.heads = d.kv_heads * rng.choice((1, 1, 1, 2, 3, 4, 5, 7, 8, 16))
    _draw_sequences(rng, d, most_pairs)
    _draw_sight(rng, d)
    if rng.random() < 0.25:
        d.scale = single(rng.gauss(0, 1) * (1 if rng.random() < 0.3 else d.dim**-0.5))
    if rng.random() < 0.25:
        d.softcap = rng.choice((0.5, 2.0, 10.0, 30.0, 50.0))
    if rng.random() < 0.25:
        d.sinks = rng.choice(("f32", "f16", "bf16"))
    if rng.random() < 0.4:
        d.mask = _draw_mask(rng, d)
    d.layout = rng.choice(("blhd", "bhld"))
    for name in ("q", "k", "v", "out"):
        d.heads_first[name] = rng.random() < 0.4
        padded = rng.random() < 0.4
        one, two, three = (rng.choice((0, 0, 1, 2, 5)) if padded else 0 for _ in range(3))
        d.padding[name] = one, two, three
    d.lse = rng.random() < 0.85
    d.nan_queries = rng.random() < 0.5
    if d.mask and d.batch > 1:
        # With packed sequences, a mask requires max lengths.
        d.max_q_length = _longest(d.packed_q, d.q_lengths, d.q_tail)
        d.max_kv_length = _longest(d.packed_kv, d.kv_lengths, d.tail)
    # A mask needs the longest sequence, which cannot say that there is no key.
    if not d.packed_kv and rng.random() < 0.25 and not (d.mask and d.kv_lengths[0] == 0):
        d.page = rng.choice(PAGES)
        d.more_pages = rng.randint(0, 2)
        if d.mask:
            d.max_kv_length = d.kv_lengths[0]
    d.batch_invariant = rng.random() < (0.4 if d.page else 0.05)
    if d.dtype == FP8:
        _draw_fp8(rng, d)
    return d


def _draw_fp8(rng: random.Random, d: Drawn) -> None:
    d.out_dtype = rng.choice(("bf16", "bf16", "f16", "f32"))
    d.factors = {name: rng.choice(FACTORS) for name in ("q", "k", "v")}
    if rng.random() < 0.9:  # other pitches are no multiple of 16 bytes, which TMA requires
        d.dim, d.dim_v = (-(-dim // 16) * 16 for dim in (d.dim, d.dim_v))
    d.v_by_keys = rng.random() < 0.25 and not (d.page or d.packed_kv)


def _longest(packed: bool, lengths: list[int], tail: int) -> int:
    """The longest sequence; at least 1 if there is a row, as 0 means "not known"."""
    return max(*lengths, min(1, tail)) if packed else 0


def single(x: float) -> float:
    """The nearest float32, so that the library and the oracle use the same number."""
    import numpy as np

    return float(np.float32(x))


def _dim(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.6:
        return rng.choice(USUAL_DIMS)
    return rng.choice(OTHER_DIMS) if kind < 0.75 else 8 * rng.randint(1, 32)


def _length(rng: random.Random, longest: int = LONGEST) -> int:
    low, high = (LONG + 1, LONGEST + 1) if rng.random() < 0.1 else (1, LONG + 2)
    length = math.floor(math.exp(rng.uniform(math.log(low), math.log(high))))
    return min(longest, length if low > 1 else length - 1)


def _draw_sequences(rng: random.Random, d: Drawn, most_pairs: int) -> None:
    batch = rng.choice((1, 1, 1, 2, 2, 3, 4, 5, 8, 16))
    d.packed_q, d.packed_kv = rng.random() < 0.3, rng.random() < 0.3

    def lengths(packed: bool) -> list[int]:
        return [_length(rng) for _ in range(batch)] if packed else [_length(rng)] * batch

    d.q_lengths, d.kv_lengths = lengths(d.packed_q), lengths(d.packed_kv)
    if rng.random() < 0.3:  # equal lengths, as in training; a dense side determines the length
        if d.packed_q and not d.packed_kv:
            d.q_lengths = list(d.kv_lengths)
        else:
            d.kv_lengths = list(d.q_lengths)
    most_numbers = min(MOST_NUMBERS, (1 << 18) + 2 * most_pairs)
    while d.pairs > most_pairs or d.numbers > most_numbers:
        _shrink(rng, d)
    if d.packed_q and rng.random() < 0.6:
        d.max_q_length = max(d.q_lengths)
    if d.packed_kv and rng.random() < 0.6:
        d.max_kv_length = max(d.kv_lengths)
    if d.packed_kv and rng.random() < 0.3:
        d.tail = rng.randint(1, 200)
    if d.packed_q and rng.random() < 0.3:
        d.q_tail = rng.randint(1, 200)


def _shrink(rng: random.Random, d: Drawn) -> None:
    """Makes a problem a little smaller: sequences and heads before lengths."""
    group = d.heads // d.kv_heads
    ways = []
    if d.batch > 1:
        ways.append("batch")
    if group > 1:
        ways.append("group")
    if d.kv_heads > 1:
        ways.append("heads")
    way = rng.choice(ways) if ways else "length"
    if way == "batch":
        keep = (d.batch + 1) // 2
        d.q_lengths, d.kv_lengths = d.q_lengths[:keep], d.kv_lengths[:keep]
    elif way == "group":
        d.heads = d.kv_heads * ((group + 1) // 2)
    elif way == "heads":
        d.kv_heads = (d.kv_heads + 1) // 2
        d.heads = d.kv_heads * group
    elif max(d.q_lengths) > max(d.kv_lengths):
        d.q_lengths = [length * 3 // 4 for length in d.q_lengths]
    else:
        d.kv_lengths = [length * 3 // 4 for length in d.kv_lengths]


def _draw_sight(rng: random.Random, d: Drawn) -> None:
    d.index = rng.choice(("i32", "i64"))
    d.causal = rng.random() < 0.4
    if rng.random() < 0.25:
        d.window_left = _length(rng)
    if rng.random() < 0.2:
        d.window_right = _length(rng)
    if rng.random() < 0.3:
        d.kv_end = [rng.randint(0, length) for length in d.kv_lengths]
    ends = d.kv_end or d.kv_lengths
    if rng.random() < 0.25:
        d.kv_begin = [rng.randint(0, end) for end in ends]
    if rng.random() < 0.25:
        d.kv_position = [rng.randint(-10, LONG) for _ in ends]
    if rng.random() < 0.3:
        near = rng.random() < 0.6
        origins = d.kv_position or [0] * d.batch
        d.q_position = [
            origin + (end - q + rng.randint(-70, 70) if near else rng.randint(-10, kv + 10))
            for origin, end, q, kv in zip(origins, ends, d.q_lengths, d.kv_lengths,
                                           strict=True)]
    if d.q_position and d.kv_position and d.index == "i64" and rng.random() < 0.2:
        d.q_position = [FAR + position for position in d.q_position]
        d.kv_position = [FAR + position for position in d.kv_position]


def _draw_mask(rng: random.Random, d: Drawn) -> Blocks:
    mask = Blocks(
        block_q=_block(rng), block_kv=_block(rng),
        batch=rng.choice((1, d.batch)), heads=rng.choice((1, d.kv_heads, d.heads)),
        density=rng.choice((0.0, 0.03, 0.1, 0.3, 0.6, 0.9, 1.0)),
        partial=rng.choice((0.0, 0.0, 0.3, 0.6, 1.0)),
        empty_rows=rng.choice((0.0, 0.0, 0.2)), tiles=rng.choice((0, 1, 3, 8)))

    def too_many() -> bool:
        rows, columns = -(-d.q_bound // mask.block_q), -(-d.kv_bound // mask.block_kv)
        return rows * columns * mask.batch * mask.heads > MOST_CELLS

    if too_many():
        mask.batch = 1
    if too_many():
        mask.heads = 1
    while too_many():
        mask.block_q, mask.block_kv = 2 * mask.block_q, 2 * mask.block_kv
    return mask


def _block(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.5:
        return 64 * rng.randint(1, 4)
    return rng.choice((16, 16, 32, 32, 48, 96)) if kind < 0.95 else rng.randint(1, 150)
