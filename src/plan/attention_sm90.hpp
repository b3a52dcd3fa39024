#pragma once

#include <cstdint>
#include <string>

#include "src/plan/select.hpp"
#include "src/plan/shape.hpp"
#include "src/plan/tile_table.hpp"
#include "src/plan/workspace.hpp"

// What Hopper's rows of attention do with a shape: host arithmetic that planner and launch share.
namespace tessera::planning {

/// Keys come in pieces of this many: a box of TMA, and the finest that lists can name.
inline constexpr int kKeyPiece = 64;

/// Whether scores are changed before the softmax: by a softcap, or because a scale of zero or less
/// would turn the order of scores, and hidden ones, round.
inline bool scores_are_mapped(const AttentionShape& s) {
  return s.softcap > 0.0f || !(s.scale > 0.0f);
}

/// Three warpgroups and more leave each thread too few registers for that.
constexpr bool takes_mapped_scores(const Tile& tile) { return tile.warpgroups < 3; }

/// Queries of a line: where a tile walks several lists, each is one of so many rows.
constexpr int line_queries(const Tile& tile) { return tile.m / tile.lines; }

/// Columns of a mask's blocks that such a tile can take: it keeps a bit of each.
inline constexpr int kMostLineBlocks = 1 << 16;

struct AttentionLayout {
  int pack = 1;                   // heads that read the same keys, folded into a tile's rows
  std::int64_t queries = 0;       // of a tile: tile.m / pack
  std::int64_t head_groups = 0;   // heads / pack
  std::int64_t tiles_a_head = 0;  // of one sequence and head group, at most
  std::int64_t tiles = 0;         // output tiles in all, at most
  int lines = 1;                  // lists of a tile: several are walked together
  std::int64_t section = 1;       // head groups whose tiles are dealt together, longest first
  int splits = 1;                 // tiles over which the keys of one output tile are divided
  bool uneven = false;            // walks differ in length: tiles are dealt as they are asked for
};

AttentionLayout attention_layout(const AttentionShape& s, const Tile& tile);

/// The share of all keys that a tile of several lists loads, where they have nothing to do with
/// each other: what none of them names stays away.
double share_of_union(const AttentionShape& s, int lines);

/// Milliseconds of a row, without the launch.
double attention_sm90_ms(const AttentionShape& s, const Tile& tile, const DeviceFacts& device,
                         const Work& work);

/// For `explain`.
std::string describe(const AttentionLayout& layout);

/// What `run` needs besides the tensors. Partial results of splits are f32.
struct AttentionScratchSm90 {
  int* dealt = nullptr;  // counts tiles that were handed out
  float* out = nullptr;  // [splits, batch * length, heads, dim_v]
  float* lse = nullptr;  // [splits, batch * length, heads]
};
AttentionScratchSm90 carve_attention_scratch(Carver& carver, const AttentionShape& s,
                                             const AttentionLayout& layout);

}  // namespace tessera::planning
