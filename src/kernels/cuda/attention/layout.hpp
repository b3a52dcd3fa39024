#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "src/kernels/family.hpp"
#include "src/walk/compose_mask.hpp"
#include "src/walk/key_pieces.hpp"
#include "src/walk/launch_count.hpp"
#include "src/walk/step_walk.hpp"

// How the rows of attention families divide a problem into tiles and KV splits: host arithmetic
// that their planners and launches share.
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

/// The shape whose lists a kernel walks: the given shape, or a copy whose mask is replaced by the
/// composed one.
class WalkedShape {
 public:
  WalkedShape(const AttentionShape& given, const ComposedMask& mask) : shape_(&given) {
    if (!mask) return;
    shape_ = &composed_.emplace(given);
    set_mask(*composed_, mask);
  }
  WalkedShape(const WalkedShape&) = delete;
  WalkedShape& operator=(const WalkedShape&) = delete;
  const AttentionShape& operator*() const { return *shape_; }

 private:
  std::optional<AttentionShape> composed_;
  const AttentionShape* shape_;
};

/// Query heads with the same keys and lists: as many may be folded into a tile's rows.
std::int64_t heads_alike(const AttentionShape& s);

/// Whether the number of keys that a tile visits depends on lists or lengths in device memory,
/// which the shape does not hold.
bool walks_depend_on_data(const AttentionShape& s);

/// Whether the shortest walk is at least half as long as the longest: without masks, and under a
/// causal mask where at least half of the keys come before the first query (chunked prefill).
/// Queries are taken to be at their default positions, as positions are no part of a shape.
bool walks_alike(const AttentionShape& s);

/// Rounds of steps in the longest walk of a tile.
std::int64_t longest_walk(const AttentionShape& s, const Tile& tile);

/// Number of tiles, not counting the parts that consumers skip, where enough rounds of tiles even
/// them out: with few, some SMs have full tiles alone. Packed sequences end anywhere in their last
/// tile.
double computed_tiles(const AttentionShape& s, const Tile& tile, const AttentionLayout& layout);

/// Text for `explain`.
std::string describe_layout(const AttentionLayout& layout);

}  // namespace tessera::planning
