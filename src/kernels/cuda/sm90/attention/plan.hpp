#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "src/core/carver.hpp"
#include "src/problem/shape.hpp"
#include "src/select/select.hpp"
#include "src/select/tile_table.hpp"
#include "src/walk/compose_mask.hpp"
#include "src/walk/launch_count.hpp"

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

/// Steps of a tile's walk that its last rows may see where its first do not, as under a causal
/// mask, or the other way round, as under a window: if consumers can leave and join a tile for
/// themselves.
constexpr int steps_apart(const Tile& tile) {
  constexpr int kConsumerRows = 64;
  return tile.teams == 1 && tile.lines == 1 ? (tile.m - kConsumerRows) / tile.n : 0;
}

/// Whether consumers leave a tile when their rows see no more. They keep the values of their own
/// last step meanwhile, so the ring needs a stage more than there are such steps.
constexpr bool leaves_sooner(const Tile& tile) {
  return steps_apart(tile) > 0 && steps_apart(tile) < tile.stages;
}

/// Whether they also join a tile when their rows see something. Then they are as far apart all the
/// time, and a stage more is needed to load into.
constexpr bool joins_later(const Tile& tile) {
  return steps_apart(tile) > 0 && steps_apart(tile) + 1 < tile.stages;
}

/// Whether a consumer leaves tiles to others in which it has no rows, as in the last one of a
/// sequence. Two wait for each other's turns; what asks whether it has rows costs four, of whose
/// tiles lengths are often multiples, 1%.
constexpr bool skips_tiles(const Tile& tile) {
  return tile.warpgroups == 3 && tile.teams == 1 && tile.lines == 1;
}

/// Tiles of one head side by side share its keys. Where later tiles are longer, the long ones of so
/// many heads come first as fill the GPU, so that short ones end the work; and so many that the
/// last heads fill it too, where that can be.
std::int64_t section_of(std::int64_t heads, std::int64_t tiles_per_head);

/// Columns of a mask's blocks that such a tile can take: it keeps a bit of each.
inline constexpr int kMaxLineBlocks = 1 << 16;

struct AttentionLayout {
  int pack = 1;                   // heads that read the same keys, folded into a tile's rows
  std::int64_t queries = 0;       // of a tile: tile.m / pack
  std::int64_t head_groups = 0;   // heads / pack
  std::int64_t tiles_per_head = 0;  // of one sequence and head group, at most
  std::int64_t tiles = 0;         // output tiles in all, at most
  int lines = 1;                  // lists of a tile: several are walked together
  std::int64_t section = 1;       // head groups whose tiles are dealt together, longest first
  std::int64_t whole = 0;         // tiles that are not divided: whole rounds of them, or all
  std::int64_t sharers = 0;       // blocks of threads among which the others are divided
  bool uneven = false;            // walks differ in length: tiles are dealt as they are asked for
  ComposedMask composed;          // lists that are walked in place of the mask's
  bool ordered = false;           // by data: what would end last begins earlier

  std::int64_t divided() const { return tiles - whole; }

  /// Blocks of threads, on a card of so many multiprocessors.
  std::int64_t blocks(std::int64_t units) const {
    return whole > 0 ? std::min(whole, units) : sharers;
  }
  /// Whether so many blocks ask for their tiles: else they take them in turns, and each of them at
  /// most one share of divided ones.
  bool dealt(std::int64_t blocks) const {
    return uneven && whole > blocks && whole + sharers < LaunchCount::kMax;
  }
};

/// Multiprocessors of the cards whose rounds of tiles are planned.
inline constexpr std::int64_t kPlannedUnits = 132;

/// What one block of threads puts in order.
inline constexpr std::int64_t kMaxOrderedTiles = 1 << 16;
inline constexpr int kMaxOrderedSequences = 1024;

AttentionLayout attention_layout(const AttentionShape& s, const Tile& tile);

/// What a row makes of a mask whose blocks its tiles do not fit; empty where they do.
ComposedMask composed_mask(const AttentionShape& s, const Tile& tile);
/// The problem with the mask that a row's kernel walks.
inline AttentionShape as_walked(const AttentionShape& s, const Tile& tile) {
  return with_mask(s, composed_mask(s, tile));
}

/// Composed lists of more bytes are refused.
inline constexpr double kMaxComposedBytes = 8.0 * (1 << 30);

/// The share of all keys that a tile of several lists loads, where they have nothing to do with
/// each other: what none of them names stays away.
double share_of_union(const AttentionShape& s, int lines);

/// Milliseconds of a row, without the launch. `work` is that of the problem as it is walked.
double attention_sm90_ms(const AttentionShape& s, const Tile& tile, const DeviceFacts& device,
                         const Work& work);

/// For `explain`.
std::string describe(const AttentionLayout& layout);

/// What `run` needs besides the tensors.
struct AttentionScratchSm90 {
  std::uint64_t* dealt = nullptr;   // counts tiles that were asked for
  int* order = nullptr;             // of tiles; then what each may cost
  std::uint64_t* opened = nullptr;  // counts blocks of threads that saw the grids before done
  std::uint64_t* joined = nullptr;  // for each consumer of a divided tile, the parts that are there
  float* parts = nullptr;           // what consumers found, as they hold it
  ComposedLists composed;
};
AttentionScratchSm90 carve_attention_scratch(core::Carver& carver, const Tile& tile,
                                             const AttentionLayout& layout);

}  // namespace tessera::planning
