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

// How Hopper's attention rows divide a problem: host arithmetic that the planner and the launch
// share.
namespace tessera::planning {

/// With three or more warpgroups, a thread has too few registers for a score transform.
constexpr bool supports_score_transform(const Tile& tile) { return tile.warpgroups < 3; }

/// Queries per row group of a tile with several lists: each list belongs to that many rows.
constexpr int row_group_queries(const Tile& tile) { return tile.m / tile.row_groups; }

/// Row groups of a tile's walk: one per list, or else one per consumer of a KV split.
constexpr int walk_row_groups(const Tile& tile) {
  return tile.row_groups > 1 ? tile.row_groups : tile.warpgroups / tile.kv_splits;
}

/// The pieces of keys that a tile visits.
template <Tile kTile>
using PiecesOfTile =
    std::conditional_t<(kTile.row_groups > 1),
                       RowGroupPieces<walk_row_groups(kTile), kTile.m / walk_row_groups(kTile)>,
                       ListPieces<walk_row_groups(kTile), kTile.m / walk_row_groups(kTile)>>;

/// The order of a tile's steps, for tiles with one list or none.
template <Tile kTile>
using StepsOfTile = OrderedSteps<kTile.n / kKeyPiece, kTile.kv_splits>;

/// Number of steps at the end of a walk that only a tile's last rows see (causal mask), or at its
/// start that only the first rows see (window), if consumers can leave and join a tile
/// independently; else 0.
constexpr int steps_apart(const Tile& tile) {
  constexpr int kConsumerRows = 64;
  return tile.kv_splits == 1 && tile.row_groups == 1 ? (tile.m - kConsumerRows) / tile.n : 0;
}

/// Whether a consumer leaves a tile early once its rows see no further key. It holds the V of its
/// own last step meanwhile, so the ring needs one stage more than steps_apart.
constexpr bool leaves_sooner(const Tile& tile) {
  return steps_apart(tile) > 0 && steps_apart(tile) < tile.stages;
}

/// Whether a consumer also joins a tile late, when its rows see their first key. Consumers are then
/// steps_apart steps apart throughout, and loads need one stage more.
constexpr bool joins_later(const Tile& tile) {
  return steps_apart(tile) > 0 && steps_apart(tile) + 1 < tile.stages;
}

/// Whether a consumer skips tiles in which it has no rows, as in the last tile of a sequence. Not
/// with two consumers, which wait for each other's turns, and not with four: their tile heights
/// often divide the length, and the check costs 1%.
constexpr bool skips_tiles(const Tile& tile) {
  return tile.warpgroups == 3 && tile.kv_splits == 1 && tile.row_groups == 1;
}

/// Number of head groups per section. Adjacent tiles of one head share its keys in L2. Where later
/// tiles are longer (causal), a section orders the tiles of just enough heads to fill the GPU by
/// length, longest first, so that short tiles end the work. The size is chosen so that the
/// remaining heads fill the GPU too, where possible.
std::int64_t section_of(std::int64_t heads, std::int64_t tiles_per_head, std::int64_t sms);

/// Seconds to merge the parts of `tiles` split tiles: partial results are written and read again.
double merge_seconds(const Tile& tile, std::int64_t tiles, std::int64_t split_ctas);

/// The range [first, end) of CTAs per split tile that contains the fastest number from 2 to `max`.
/// `rounds`: rounds of steps in a tile's walk, `step` seconds each.
struct CtasPerTile {
  std::int64_t first = 2, end = 2;
};
CtasPerTile fastest_ctas_per_tile(std::int64_t rounds, double step, std::int64_t max,
                                  std::int64_t tiles, const Tile& tile);

struct AttentionLayout {
  std::int64_t sms = 1;             // SMs of the device
  int pack = 1;                     // heads that read the same keys, folded into a tile's rows
  std::int64_t queries = 0;         // per tile: tile.m / pack, rounded down
  std::int64_t head_groups = 0;     // heads / pack
  std::int64_t tiles_per_head = 0;  // per sequence and head group, upper bound
  std::int64_t tiles = 0;           // output tiles, upper bound
  int row_groups = 1;               // lists per tile
  std::int64_t section = 1;         // head groups per section, see section_of
  std::int64_t whole = 0;           // unsplit tiles: whole rounds, or all tiles
  std::int64_t split_ctas = 0;      // CTAs that split the KV of the other tiles
  // Whether the first step of a tile overlaps with the last of the tile before. The Q buffer of
  // that tile then becomes free one step later, so that short walks wait for their Q.
  bool overlaps = true;
  bool uneven = false;    // walks differ in length: tiles may be dynamic (taken from a counter)
  ComposedMask composed;  // composed lists, which replace the mask's
  bool ordered = false;   // order.cu orders the tiles: those that would end last begin earlier

  std::int64_t split_tiles() const { return tiles - whole; }

  /// Number of CTAs launched.
  std::int64_t blocks() const { return whole > 0 ? std::min(whole, sms) : split_ctas; }
  /// Whether CTAs take their tiles from a counter. Otherwise tiles are static, and each CTA has at
  /// most one share of the split tiles.
  bool dynamic() const {
    return uneven && whole > blocks() && whole + split_ctas < LaunchCount::kMax;
  }
};

AttentionLayout attention_layout(const AttentionShape& s, const KernelRow& row, std::int64_t sms);

/// The composed mask that a kernel row walks if its tiles do not fit the mask's blocks; empty if
/// they fit.
ComposedMask composed_mask(const AttentionShape& s, const Tile& tile);
/// Larger composed lists are refused.
inline constexpr double kMaxComposedBytes = 8.0 * (1 << 30);

/// The expected fraction of all keys that a tile with several unrelated lists loads, i.e. that any
/// of the lists names.
double share_of_union(const AttentionShape& s, int row_groups);

/// Estimated seconds, without the launch. `work`: of the problem as it is walked (with composed
/// blocks).
double attention_seconds(const AttentionShape& s, const AttentionLayout& layout,
                         const KernelRow& row, const DeviceFacts& device, const Work& work);

/// Work of the problem as it is walked: with the composed blocks, if there are any.
Work walked_work(const AttentionShape& s, const ComposedMask& composed);

/// Add the reasons that hold for attention rows of all architectures: those that do not depend on
/// the layout, and those that do.
void refuse_attention(const AttentionShape& s, const KernelRow& row, Reasons& reasons);
void refuse_attention_layout(const AttentionShape& s, const KernelRow& row,
                             const AttentionLayout& layout, Reasons& reasons);

/// Text for `explain`.
std::string describe_layout(const AttentionLayout& layout);

KernelFamily sm90_attention_family();

/// The kernel's scratch memory, inside the workspace.
struct AttentionScratchSm90 {
  std::uint64_t* next_tile = nullptr;     // counter of dynamic tiles
  int* order = nullptr;                   // tiles in order; then their estimated costs
  std::uint64_t* grids_seen = nullptr;    // counts CTAs that saw all earlier grids end
  std::uint64_t* merge_counts = nullptr;  // finished parts, per consumer of a split tile
  float* partials = nullptr;  // partial results, in the layout of the consumers' registers
  ComposedLists composed;
};
AttentionScratchSm90 carve_attention_scratch(core::Carver& carver, const Tile& tile,
                                             const AttentionLayout& layout);

/// The walk of a problem, without the counters of a launch.
AttentionWalk attention_walk(const AttentionProblem& problem, const AttentionShape& shape,
                             const AttentionLayout& layout, const Tile& tile);
/// How the composed lists are made from the problem's mask.
MaskComposer composer_of(const AttentionProblem& problem, const AttentionShape& shape,
                         const ComposedMask& to, const ComposedLists& lists);
/// Makes a walk go through composed lists.
void walk_composed(AttentionWalk& walk, const ComposedMask& to, const ComposedLists& lists);

}  // namespace tessera::planning
