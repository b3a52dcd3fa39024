#pragma once

#include <algorithm>
#include <cstdint>

#include "src/core/carver.hpp"
#include "src/kernels/row.hpp"
#include "src/problem/shape.hpp"

// How the CPU backend divides its buffers: plain arithmetic, shared by the planner (sizes) and the
// kernels (addresses).
namespace tessera::planning {

using core::Size;

/// kMaxLanes: maximum floats per vector on any instruction set. kMaxStrip: maximum columns per
/// strip of the right operand.
inline constexpr std::int64_t kMaxLanes = 16;
inline constexpr std::int64_t kMaxStrip = 48;
constexpr std::int64_t pad_lanes(std::int64_t n) { return core::align_up(n, kMaxLanes); }

/// Floats of the right operand that are packed at a time, unless a single strip needs more. Few,
/// because touching new pages costs more than reading the left operand again. For deep operands,
/// five strips up to a limit, so that reading the left operand again stays cheap compared with the
/// arithmetic.
inline constexpr std::int64_t kPackedFloats = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxPackedFloats = std::int64_t{8} << 20;
constexpr std::int64_t packing_budget(std::int64_t rows) {
  const std::int64_t most = kMaxPackedFloats / (kMaxStrip * 5);
  return std::max(kPackedFloats, std::min(rows, most) * kMaxStrip * 5);
}
/// With fewer left rows than this, the operands are exchanged: the large one is then read in place
/// and the small one packed.
inline constexpr std::int64_t kSkinnyRows = 32;
/// Maximum rows per tile.
inline constexpr std::int64_t kMaxTileRows = 128;

/// Sparse times sparse: the shape of the stored blocks of B, stacked.
inline BlockShape pool_shape(const OperandShape& b) {
  const std::int64_t rows = b.transposed ? b.block.cols : b.block.rows;
  return {(Size(b.stored) * rows).value(), b.transposed ? b.block.rows : b.block.cols};
}

/// Which operand is read by broadcast ("left") and which is packed into strips ("right").
struct ProductSides {
  bool swapped = false;         // left is B transposed, right is A transposed
  std::int64_t right_rows = 0;  // rows of the packed operand: upper bound over batches
  std::int64_t right_cols = 0;
};

inline ProductSides product_sides(const MatmulShape& s) {
  ProductSides sides;
  if (s.a.sparse && s.b.sparse) {
    const BlockShape pool = pool_shape(s.b);
    sides.right_rows = pool.rows;
    sides.right_cols = pool.cols;
    return sides;
  }
  const bool skinny = s.m < kSkinnyRows && s.n > s.m;
  sides.swapped = s.b.sparse || (!s.a.sparse && skinny);
  sides.right_rows = s.k;
  sides.right_cols = sides.swapped ? s.m : s.n;
  return sides;
}

/// Floats of the packed right operand: all batches, or as many whole ones as fit the budget; if one
/// batch does not fit, as much as the budget holds, at least one strip.
inline std::int64_t packed_floats(std::int64_t rows, std::int64_t cols, std::int64_t batch) {
  const std::int64_t one_strip = (Size(rows) * std::min(pad_lanes(cols), kMaxStrip)).value();
  const std::int64_t whole_batch = (Size(rows) * pad_lanes(cols)).value();
  if (whole_batch == 0 || batch == 0) return 0;
  const std::int64_t budget = packing_budget(rows);
  const std::int64_t batches = std::clamp<std::int64_t>(budget / whole_batch, 1, batch);
  return std::max(one_strip, std::min(batches * whole_batch, budget));
}

/// Sampled products pack whole columns of blocks, each padded separately.
inline std::int64_t sampled_packed_floats(const SddmmShape& s) {
  const std::int64_t column = (Size(s.k) * pad_lanes(s.out.block.cols)).value();
  if (column == 0 || s.n == 0) return 0;
  const std::int64_t columns = s.n / s.out.block.cols;
  return column * std::clamp<std::int64_t>(kPackedFloats / column, 1, columns);
}

inline std::int64_t pool_packed_floats(const OperandShape& b) {
  const BlockShape pool = pool_shape(b);
  return packed_floats(pool.rows, pool.cols, 1);
}

/// One thread's scratch memory for products.
struct ProductScratch {
  float* left;    // a converted piece of the left operand: kMaxTileRows x tile.k
  float* c;       // the tile: kMaxTileRows x (tile.n + kMaxStrip)
  float* turned;  // the transposed tile; or one output row, and a row to add to it
};
inline ProductScratch carve_product_scratch(core::Carver& carver, const Tile& tile) {
  const std::int64_t wide = tile.n + kMaxStrip;
  return {carver.add<float>(kMaxTileRows * tile.k), carver.add<float>(kMaxTileRows * wide),
          carver.add<float>(kMaxTileRows * wide)};
}

/// The transposed lists of a sparse operand, which `prepare` writes.
struct ListBuffers {
  std::int64_t* offsets;    // [batch, lines + 1]
  std::int64_t* others;     // [batch, stored]: the block's coordinate along the line
  std::int64_t* positions;  // [batch, stored]
};
inline ListBuffers carve_lists(core::Carver& carver, std::int64_t batch, std::int64_t lines,
                               std::int64_t stored) {
  return {carver.add<std::int64_t>(Size(batch) * (lines + 1)),
          carver.add<std::int64_t>(Size(batch) * stored),
          carver.add<std::int64_t>(Size(batch) * stored)};
}

/// Number of lines (rows of blocks) of the sparse left operand.
inline std::int64_t left_lines(const MatmulShape& s) {
  if (s.a.sparse) return s.a.transposed ? s.m / s.a.block.cols : s.m / s.a.block.rows;
  return s.b.transposed ? s.n / s.b.block.rows : s.n / s.b.block.cols;
}

/// The schedule of a matmul, which `prepare` writes: lists by column for operands that are walked
/// against their storage order, and the left operand's lines, longest first.
struct MatmulSchedule {
  ListBuffers a{}, b{};
  std::int64_t* order = nullptr;  // [list batches of the left operand, lines]
};
inline MatmulSchedule carve_matmul_schedule(core::Carver& carver, const MatmulShape& s) {
  MatmulSchedule schedule;
  const auto stored_cols = [](const OperandShape& o) {
    return (o.transposed ? o.rows : o.cols) / o.block.cols;
  };
  if (s.a.sparse && s.a.transposed)
    schedule.a = carve_lists(carver, s.a.batch, stored_cols(s.a), s.a.stored);
  if (s.b.sparse && !s.b.transposed)
    schedule.b = carve_lists(carver, s.b.batch, stored_cols(s.b), s.b.stored);
  if (s.a.sparse || s.b.sparse)
    schedule.order =
        carver.add<std::int64_t>(Size(s.a.sparse ? s.a.batch : s.b.batch) * left_lines(s));
  return schedule;
}

// ---- attention ---------------------------------------------------------------------------------

/// One (batch, heads, rows) tile of queries, which one thread computes at a time. Its lanes are
/// head_count * row_count queries, head by head.
struct QueryTile {
  std::int64_t batch = 0, head = 0, head_count = 0, row = 0, row_count = 0;
};

/// How queries are divided into tiles: the rows of a tile lie in one row of mask blocks; several
/// heads of a group, which share their keys and lists, fill a tile if sequences are short.
struct QueryTiling {
  std::int64_t batch = 0, group = 1, rows = 0;
  std::int64_t rows_per_tile = 1, heads_per_tile = 1, row_tiles = 0, head_tiles = 0;

  std::int64_t tiles() const { return (Size(batch) * head_tiles * row_tiles).value(); }
  QueryTile tile(std::int64_t index) const {
    QueryTile t;
    t.row = index % row_tiles * rows_per_tile;
    const std::int64_t unit = index / row_tiles;
    t.batch = unit / head_tiles;
    // Heads of one group only, since they share keys.
    const std::int64_t tiles_per_group = (group + heads_per_tile - 1) / heads_per_tile;
    const std::int64_t in_group = unit % head_tiles % tiles_per_group * heads_per_tile;
    t.head = unit % head_tiles / tiles_per_group * group + in_group;
    t.head_count = std::min(heads_per_tile, group - in_group);
    t.row_count = std::min(rows_per_tile, rows - t.row);
    return t;
  }
};

inline QueryTiling query_tiling(const AttentionShape& s, const Tile& tile) {
  QueryTiling t;
  t.batch = s.batch;
  t.group = s.kv_heads == 0 ? 1 : s.heads / s.kv_heads;
  t.rows = s.q_length;
  if (s.heads == 0 || s.q_length == 0) return t;
  t.rows_per_tile = std::min<std::int64_t>(tile.m, s.q_length);
  if (s.masked) {
    // The largest equal pieces of a row of mask blocks that fit.
    const std::int64_t pieces = (s.mask_block.rows + tile.m - 1) / tile.m;
    t.rows_per_tile = (s.mask_block.rows + pieces - 1) / pieces;
    while (s.mask_block.rows % t.rows_per_tile != 0) --t.rows_per_tile;
  } else {
    t.heads_per_tile = std::clamp<std::int64_t>(tile.m / t.rows_per_tile, 1, t.group);
  }
  t.row_tiles = (s.q_length + t.rows_per_tile - 1) / t.rows_per_tile;
  t.head_tiles = s.kv_heads * ((t.group + t.heads_per_tile - 1) / t.heads_per_tile);
  return t;
}

/// One thread's scratch memory for attention. Lanes are the queries of a tile, in consecutive
/// strips. In the second pass of backward, lanes are keys: k, v, dk and dv then take the places of
/// q, dout, dq and out, and a stage's rows are queries and their dout.
struct AttentionScratch {
  float *q, *out;                 // [dim | dim_v, lanes]
  float* scores;                  // one strip of a stage
  float *keys, *values;           // a stage's rows in f32
  float *maximum, *sum, *shrink;  // per lane; backward keeps the lse in `maximum`
  float* row;                     // one row, while loading or storing
  std::int32_t *lo, *hi;          // rows of the stage that a lane sees, [lo, hi)
  // Backward only.
  float* dscores;    // as scores
  float *dout, *dq;  // [dim_v | dim, lanes]
  float* delta;      // per lane
};

inline AttentionScratch carve_attention_scratch(core::Carver& carver, const AttentionShape& s,
                                                const Tile& tile, bool backward) {
  const std::int64_t lanes = pad_lanes(tile.m) + kMaxStrip;
  const std::int64_t wide = std::max(s.dim, s.dim_v);
  AttentionScratch a{};
  a.q = carver.add<float>(Size(wide) * lanes);
  a.out = carver.add<float>(Size(wide) * lanes);
  a.scores = carver.add<float>(tile.n * kMaxStrip);
  a.keys = carver.add<float>(Size(tile.n) * wide);
  a.values = carver.add<float>(Size(tile.n) * wide);
  a.maximum = carver.add<float>(lanes);
  a.sum = carver.add<float>(lanes);
  a.shrink = carver.add<float>(lanes);
  a.row = carver.add<float>(wide + kMaxLanes);
  a.lo = carver.add<std::int32_t>(lanes);
  a.hi = carver.add<std::int32_t>(lanes);
  if (backward) {
    a.dscores = carver.add<float>(tile.n * kMaxStrip);
    a.dout = carver.add<float>(Size(wide) * lanes);
    a.dq = carver.add<float>(Size(wide) * lanes);
    a.delta = carver.add<float>(lanes);
  }
  return a;
}

/// How keys are divided into tiles for the second pass of backward: like queries, within one column
/// of mask blocks.
struct KeyTiling {
  std::int64_t keys_per_tile = 1, key_tiles = 0;
};
inline KeyTiling key_tiling(const AttentionShape& s, const Tile& tile) {
  KeyTiling t;
  t.keys_per_tile = tile.m;
  if (s.masked) {
    const std::int64_t pieces = (s.mask_block.cols + tile.m - 1) / tile.m;
    t.keys_per_tile = (s.mask_block.cols + pieces - 1) / pieces;
    while (s.mask_block.cols % t.keys_per_tile != 0) --t.keys_per_tile;
  }
  t.key_tiles = (s.kv_length + t.keys_per_tile - 1) / t.keys_per_tile;
  return t;
}

/// The schedule of attention with a mask, which `prepare` writes: the query tiles, longest walk
/// first; for backward also, per set of lists, the rows of query blocks that visit each block of
/// keys.
struct AttentionSchedule {
  std::int64_t* order = nullptr;    // [tiles]
  std::int64_t* offsets = nullptr;  // [sets, key blocks + 1]
  std::int64_t* rows = nullptr;     // [sets, entries]
  std::int64_t* tiles = nullptr;    // [sets, entries]: the bit tile, or -1
  std::int64_t key_blocks = 0, entries = 0;

  std::int64_t set(const AttentionShape& s, std::int64_t batch, std::int64_t head) const {
    return (s.mask_batch > 1 ? batch : 0) * s.mask_heads + head / s.heads_per_list();
  }
};
inline AttentionSchedule carve_attention_schedule(core::Carver& carver, const AttentionShape& s,
                                                  const Tile& tile, bool backward) {
  AttentionSchedule schedule;
  if (!s.masked) return schedule;
  schedule.order = carver.add<std::int64_t>(query_tiling(s, tile).tiles());
  if (!backward) return schedule;
  const Size sets = Size(s.mask_batch) * s.mask_heads;
  schedule.key_blocks = (s.kv_length + s.mask_block.cols - 1) / s.mask_block.cols;
  schedule.entries = (Size(s.mask_rows) * s.mask_capacity).value();
  schedule.offsets = carver.add<std::int64_t>(sets * (schedule.key_blocks + 1));
  schedule.rows = carver.add<std::int64_t>(sets * schedule.entries);
  schedule.tiles = carver.add<std::int64_t>(sets * schedule.entries);
  return schedule;
}

}  // namespace tessera::planning
