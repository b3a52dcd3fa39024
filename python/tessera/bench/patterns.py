"""The patterns of cases. tessera's seeded generators make them, so that they are equal on all
machines."""

from dataclasses import dataclass

import numpy as np

from .cases import (
    CAUSAL_PATTERNS,
    GENERATORS_NAMES,
    PATTERN_ARGUMENTS,
    VOLUMES,
    axes,
    block_shape,
    sparse_shape,
)


class NoTessera(ValueError):
    """The tessera package, which makes the patterns, cannot be imported."""


def import_tessera():
    try:
        import tessera
    except (ImportError, OSError) as error:
        raise NoTessera(
            "the tessera package, which makes the patterns of sparse cases, cannot be imported: "
            f"{error}. Install it ('pip install .') or put its folder on PYTHONPATH."
        ) from error
    return tessera


@dataclass(frozen=True)
class Lists:
    """A pattern as sorted lists, one per row of blocks."""

    rows: int
    cols: int
    offsets: np.ndarray
    indices: np.ndarray

    @property
    def stored(self):
        return len(self.indices)

    @property
    def counts(self):
        return np.diff(self.offsets)

    def row(self, i):
        return self.indices[self.offsets[i] : self.offsets[i + 1]]

    def row_of_entry(self):
        return np.repeat(np.arange(self.rows), self.counts)

    def padded(self, width=None, fill=0):
        """Counts [rows] and indices as an array [rows, width]."""
        counts = self.counts
        width = int(counts.max(initial=0)) if width is None else width
        table = np.full((self.rows, max(width, 1)), fill, dtype=np.int32)
        place = np.arange(self.stored) - np.repeat(self.offsets[:-1], counts)
        table[self.row_of_entry(), place] = self.indices
        return counts.astype(np.int32), table

    def blocks(self):
        """Booleans, one per block."""
        made = np.zeros((self.rows, self.cols), dtype=bool)
        made[self.row_of_entry(), self.indices] = True
        return made

    def keep(self, wanted):
        """The same lists without the entries where `wanted` is false."""
        counts = np.bincount(self.row_of_entry()[wanted], minlength=self.rows)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Lists(self.rows, self.cols, offsets, self.indices[wanted])

    def repeat_rows(self, times, rows):
        """Each row `times` times, up to `rows` rows."""
        return lists_of_rows([self.row(i // times) for i in range(rows)], self.cols)

    def blended(self, own, share):
        """Keeps a `share` of each row, evenly spread, and replaces the rest by entries of `own`."""
        rows = []
        for number in range(self.rows):
            row, places = self.row(number), np.arange(len(self.row(number)))
            kept = row[np.floor((places + 1) * share) > np.floor(places * share)]
            new = np.setdiff1d(own.row(number), row)
            count = min(len(new), len(row) - len(kept))
            new = new[np.arange(count) * len(new) // max(1, count)]
            rows.append(np.sort(np.concatenate([kept, new])))
        return lists_of_rows(rows, self.cols)


def lists_of_rows(rows, cols):
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    indices = np.concatenate(rows) if rows else np.zeros(0)
    return Lists(len(rows), cols, offsets.astype(np.int64), indices.astype(np.int64))


def lists_of(blocks):
    """The lists of a boolean array with an element per block."""
    offsets = np.concatenate([[0], np.cumsum(blocks.sum(axis=1))]).astype(np.int64)
    rows, cols = blocks.shape
    return Lists(rows, cols, offsets, np.nonzero(blocks)[1].astype(np.int64))


def generate(params, rows, cols, seed=None):
    """A pattern of rows x cols blocks by the parameters of a case."""
    name = params["pattern"]
    arguments = {GENERATORS_NAMES.get(key, key): params[key] for key in PATTERN_ARGUMENTS[name]}
    if "seed" in arguments and seed is not None:
        arguments["seed"] = seed
    if name in CAUSAL_PATTERNS:
        arguments["causal"] = params.get("causal", False)
    if name == "mesh":
        arguments["block"] = params["block"]
    for key in VOLUMES.get(name, ()):
        arguments[key] = axes(arguments[key])
    sizes = () if name in VOLUMES else (rows, cols)
    return lists_of(getattr(import_tessera().patterns, name)(*sizes, **arguments))


def product_lists(op, params):
    rows, cols = sparse_shape(op, params)
    block_rows, block_cols = block_shape(params)
    seed = params.get("seed", 0)
    return joined([generate(params, rows // block_rows, cols // block_cols, seed + expert)
                   for expert in range(params.get("experts", 1))])


def joined(parts):
    """The lists of matrices stacked by rows."""
    return Lists(sum(one.rows for one in parts), parts[0].cols,
                 np.concatenate([[0], np.cumsum(np.concatenate([one.counts for one in parts]))]),
                 np.concatenate([one.indices for one in parts]))


def spgemm_lists(params):
    """The patterns of A and B, of the same kind with different seeds."""
    block = params["block"]
    m, n, k = (params[name] // block for name in "mnk")
    return generate(params, m, k), generate(params, k, n, params.get("seed", 0) + 1)


def attention_lists(params):
    """One pattern for all heads, or one per head (per KV head: repeated over the group)."""
    rows = -(-params["s"] // params["block_q"])
    cols = -(-params["skv"] // params["block_kv"])
    alike = params["alike"]
    distinct = {"shared": 1, "per_head": params["h"], "per_kv_head": params["hk"]}[params["lists"]]
    made = []
    for number in range(distinct):
        seed = params.get("seed", 0) + number
        lists = generate(params, -(-rows // alike), cols, seed)
        lists = lists if alike == 1 else lists.repeat_rows(alike, rows)
        if "similar" in params:
            own = generate(params, rows, cols, seed + distinct)
            lists = lists.blended(own, params["similar"])
        made.append(lists)
    if params["lists"] == "shared":
        return made
    return [made[head * distinct // params["h"]] for head in range(params["h"])]
