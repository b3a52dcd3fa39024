#pragma once

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/core/carver.hpp"
#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/family.hpp"
#include "src/walk/decode_walk.hpp"

// How decode rows divide a problem: host arithmetic that the planner and the launch share.
namespace tessera::planning {

/// Warps that compute: each has 16 rows of the tile, and every KV split has all rows.
constexpr int decode_warps(const Tile& tile) { return tile.m / 16 * tile.kv_splits; }
/// Columns of the result per chunk: results are exchanged and merged by chunks.
inline constexpr int kDecodeChunk = 32;

/// Keys per TMA box: all keys of a piece that are adjacent in memory.
std::int64_t decode_box_rows(const AttentionShape& s);

struct DecodeLayout {
  /// How heads and queries are folded into tiles, and the composed mask. All tiles count as whole.
  AttentionLayout tiles;
  std::int64_t sets = 1;     // sets of lists per sequence
  std::int64_t strands = 1;  // of head groups
  std::int64_t blocks = 0;
  /// For results that do not depend on the batch: DecodeWalk's members of the same names.
  std::int64_t part_pieces = 0, max_parts = 1;

  std::int64_t groups_per_strand() const { return tiles.head_groups / sets / strands; }
  /// Counters of finished parts, and places for partial results.
  std::int64_t counters() const { return part_pieces > 0 ? tiles.tiles : blocks; }
  std::int64_t slots() const {
    if (part_pieces > 0) return max_parts > 1 ? tiles.tiles * max_parts : 0;
    return DecodeShares::slots(blocks);
  }
};

DecodeLayout decode_layout(const AttentionShape& s, const KernelRow& row, std::int64_t sms);

/// The kernel's scratch memory, inside the workspace.
struct DecodeScratch {
  std::uint64_t* merge_counts = nullptr;  // finished parts of tiles, at KvShare::tile
  float* partials = nullptr;
  ComposedLists composed;
};
DecodeScratch carve_decode_scratch(core::Carver& carver, const Tile& tile,
                                   const DecodeLayout& layout);

/// The walk of a problem, without the tag of a launch.
DecodeWalk decode_walk(const AttentionProblem& problem, const AttentionShape& shape,
                       const DecodeLayout& layout, const Tile& tile);

KernelFamily sm90_decode_family();

}  // namespace tessera::planning
