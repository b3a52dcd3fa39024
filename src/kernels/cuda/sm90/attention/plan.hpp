#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include <tessera/attention.hpp>

#include "src/core/carver.hpp"
#include "src/kernels/family.hpp"
#include "src/walk/compose_mask.hpp"
#include "src/walk/key_pieces.hpp"
#include "src/walk/launch_count.hpp"
#include "src/walk/step_walk.hpp"
#include "src/walk/tile_walk.hpp"
#include "src/walk/work.hpp"

// What Hopper's attention rows do with a shape: host arithmetic that planner and launch share.
namespace tessera::planning {

/// Three warpgroups and more leave each thread too few registers for a score transform.
constexpr bool supports_score_transform(const Tile& tile) { return tile.warpgroups < 3; }

/// Queries of a row group: where a tile walks several lists, each list is for so many rows.
constexpr int row_group_queries(const Tile& tile) { return tile.m / tile.row_groups; }

/// Row groups of a tile's walk: those with a list each, or the consumers that divide the rows.
constexpr int walk_row_groups(const Tile& tile) {
  return tile.row_groups > 1 ? tile.row_groups : tile.warpgroups / tile.kv_splits;
}

/// The pieces that a tile visits.
template <Tile kTile>
using PiecesOfTile =
    std::conditional_t<(kTile.row_groups > 1),
                       RowGroupPieces<walk_row_groups(kTile), kTile.m / walk_row_groups(kTile)>,
                       ListPieces<walk_row_groups(kTile), kTile.m / walk_row_groups(kTile)>>;

/// The order of its steps, where its rows have one list or none.
template <Tile kTile>
using StepsOfTile = OrderedSteps<kTile.n / kKeyPiece, kTile.kv_splits>;

/// Steps of a walk that a tile's last rows may see where its first rows do not, as under a causal
/// mask, or the other way round, as under a window, provided that consumers can end and join a tile
/// independently.
constexpr int steps_apart(const Tile& tile) {
  constexpr int kConsumerRows = 64;
  return tile.kv_splits == 1 && tile.row_groups == 1 ? (tile.m - kConsumerRows) / tile.n : 0;
}

/// Whether a consumer ends a tile early when its rows see no more. It holds the V of its own last
/// step meanwhile, so the ring needs one stage more than there are such steps.
constexpr bool leaves_sooner(const Tile& tile) {
  return steps_apart(tile) > 0 && steps_apart(tile) < tile.stages;
}

/// Whether a consumer also joins a tile late when its rows begin to see keys. Consumers are then
/// that many steps apart all the time, and loads need one stage more.
constexpr bool joins_later(const Tile& tile) {
  return steps_apart(tile) > 0 && steps_apart(tile) + 1 < tile.stages;
}

/// Whether a consumer skips tiles in which it has no rows, as in the last tile of a sequence. Two
/// consumers wait for each other's turns; for four, whose tile heights often divide the length, the
/// check costs 1%.
constexpr bool skips_tiles(const Tile& tile) {
  return tile.warpgroups == 3 && tile.kv_splits == 1 && tile.row_groups == 1;
}

/// Head groups per section. Adjacent tiles of one head share its keys. Where later tiles are
/// longer, a section orders the tiles of as many heads as fill the GPU, longest first, so that
/// short tiles end the work; it is chosen such that the last heads fill the GPU too, where
/// possible.
std::int64_t section_of(std::int64_t heads, std::int64_t tiles_per_head, std::int64_t sms);

/// The cost of merging the parts of split tiles: partial results are written and read again.
double merge_seconds(const Tile& tile, std::int64_t tiles, std::int64_t split_ctas);

/// Numbers of CTAs per split tile, [first, end), of which one is the fastest from 2 to `max`.
/// `rounds`: of steps in a tile's walk, of `step` seconds each.
struct CtasPerTile {
  std::int64_t first = 2, end = 2;
};
CtasPerTile fastest_ctas_per_tile(std::int64_t rounds, double step, std::int64_t max,
                                  std::int64_t tiles, const Tile& tile);

struct AttentionLayout {
  std::int64_t sms = 1;             // of the device
  int pack = 1;                     // heads that read the same keys, folded into a tile's rows
  std::int64_t queries = 0;         // per tile: tile.m / pack
  std::int64_t head_groups = 0;     // heads / pack
  std::int64_t tiles_per_head = 0;  // per sequence and head group, at most
  std::int64_t tiles = 0;           // output tiles in all, at most
  int row_groups = 1;               // with a list each, per tile
  std::int64_t section = 1;         // head groups whose tiles are ordered together, longest first
  std::int64_t whole = 0;           // unsplit tiles: whole rounds of them, or all
  std::int64_t split_ctas = 0;      // CTAs that split the KV of the other tiles
  bool uneven = false;              // walks differ in length: tiles may be dynamic
  ComposedMask composed;            // lists that are walked in place of the mask's
  bool ordered = false;             // by data: tiles that would end last begin earlier

  std::int64_t split_tiles() const { return tiles - whole; }

  /// Thread blocks that are launched.
  std::int64_t blocks() const { return whole > 0 ? std::min(whole, sms) : split_ctas; }
  /// Whether blocks take their tiles from a counter. Otherwise tiles are static, and each block has
  /// at most one share of split tiles.
  bool dynamic() const {
    return uneven && whole > blocks() && whole + split_ctas < LaunchCount::kMax;
  }
};

AttentionLayout attention_layout(const AttentionShape& s, const Tile& tile, std::int64_t sms);

/// What a kernel row makes of a mask whose blocks its tiles do not fit; empty where they fit.
ComposedMask composed_mask(const AttentionShape& s, const Tile& tile);
/// Composed lists of more bytes are refused.
inline constexpr double kMaxComposedBytes = 8.0 * (1 << 30);

/// The expected share of all keys that a tile of several unrelated lists loads: keys that no list
/// names are not loaded.
double share_of_union(const AttentionShape& s, int row_groups);

/// Seconds of a row, without the launch. `work` is that of the problem as it is walked.
double attention_seconds(const AttentionShape& s, const AttentionLayout& layout, const Tile& tile,
                         const DeviceFacts& device, const Work& work);

/// For `explain`.
std::string describe_layout(const AttentionLayout& layout);

KernelFamily sm90_attention_family();

/// What `run` needs besides the tensors.
struct AttentionScratchSm90 {
  std::uint64_t* next_tile = nullptr;     // counter of dynamic tiles
  int* order = nullptr;                   // of tiles; then their estimated costs
  std::uint64_t* grids_seen = nullptr;    // counts blocks that saw all earlier grids done
  std::uint64_t* merge_counts = nullptr;  // finished parts, per consumer of a split tile
  float* partials = nullptr;              // partial results, in the consumers' layout
  ComposedLists composed;
};
AttentionScratchSm90 carve_attention_scratch(core::Carver& carver, const Tile& tile,
                                             const AttentionLayout& layout);

/// The walk of a problem, without the launch's counters.
AttentionWalk attention_walk(const AttentionProblem& problem, const AttentionShape& shape,
                             const AttentionLayout& layout, const Tile& tile);
/// Where blocks are composed: how the lists are composed that the walk goes through.
MaskComposer composer_of(const AttentionProblem& problem, const AttentionShape& shape,
                         const ComposedMask& to, const ComposedLists& lists);
void walk_composed(AttentionWalk& walk, const ComposedMask& to, const ComposedLists& lists);

}  // namespace tessera::planning
