// The walks of Hopper's attention rows, tile by tile as thread blocks take them, against brute
// force: each pair that a query sees is computed once, and no other pair.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/attention/rows.hpp"
#include "src/walk/step_walk.hpp"
#include "src/walk/views.hpp"
#include "tests/unit/compose_rows.hpp"
#include "tests/unit/walk_problem.hpp"

namespace tessera::planning {
namespace {

using testing::Bits;
using testing::WalkProblem;

constexpr int kSmCounts[] = {16, 58, 66, 78, 108, 114, 132, 142};
constexpr int kConsumerRows = 64;

/// Counts of the features of random problems. A test requires that none of them is rare.
struct Tally {
  std::int64_t problems = 0, pairs = 0, split = 0, dynamic = 0, ordered = 0, composed = 0;
  std::int64_t unmasked_steps = 0, masked_steps = 0, skipped_steps = 0, padded_early = 0, gaps = 0;
};

// ---- Which tiles a thread block takes.

/// What the thread blocks of one launch share.
struct Launch {
  int counted = 0;
  std::vector<int> order;
};
struct Source {
  Launch* launch;
  int index;
  int block() const { return index; }
  void wait() const {}
  int count(const AttentionWalk&, int, bool) const { return launch->counted++; }
  int ordered(const AttentionWalk& walk, int next) const {
    return launch->order[static_cast<std::size_t>(next - walk.blocks)];
  }
};

/// The position of a tile, as the scheduler warp finds it.
TilePlace place_of(const AttentionWalk& walk, int number) {
  if (!walk.packed_q) return TilePlace::of(walk, number);
  for (int batch = 0; batch < walk.batches; ++batch) {
    const int per_head = walk.tiles_of(walk.sequences.at(batch).q_length);
    const int count = per_head * walk.head_groups.divisor;
    if (number < count) return TilePlace::of_sequence(walk, batch, per_head, number);
    number -= count;
  }
  return TilePlace::beyond(walk, walk.batches - 1);
}

/// Sometimes splits the KV of other tiles than the planner does, which rarely splits short walks.
void draw_split(AttentionLayout& layout, generate::Random& random) {
  if (!random.chance(0.4)) return;
  std::int64_t split = std::min(layout.tiles, layout.sms);
  // Either every thread block has a whole tile, or none has.
  if (split < layout.tiles || random.chance(0.5)) split = layout.tiles - layout.sms;
  if (split <= 0 || split > layout.sms) return;
  layout.whole = layout.tiles - split;
  layout.split_ctas = random.between(split, layout.sms);
}

struct TakenTile {
  int number;
  TileDescriptor descriptor;
};

/// All tiles of a launch in the order in which its thread blocks take them. Blocks take dynamic
/// tiles in any order.
std::vector<TakenTile> take_tiles(AttentionWalk walk, const AttentionLayout& layout,
                                  generate::Random& random) {
  std::uint64_t counter = 0;
  Launch launch;
  if (layout.dynamic()) {
    walk.next_tile = &counter;
    for (int number = walk.blocks; number < walk.whole; ++number) launch.order.push_back(number);
    random.shuffle(launch.order);
    static int anything = 0;
    if (layout.ordered) walk.order = &anything;
  }
  struct Block {
    int index;
    TileCursor cursor;
  };
  std::vector<Block> blocks;
  for (int block = 0; block < walk.blocks; ++block) {
    blocks.push_back({block, {}});
    blocks.back().cursor.start();
  }
  std::vector<TakenTile> taken;
  while (!blocks.empty()) {
    const std::int64_t last = static_cast<std::int64_t>(blocks.size()) - 1;
    const auto at = static_cast<std::size_t>(walk.next_tile ? random.between(0, last) : last);
    TakenTile tile{};
    tile.number =
        blocks[at].cursor.take(walk, Source{&launch, blocks[at].index}, tile.descriptor.share);
    if (tile.number < 0) {
      std::swap(blocks[at], blocks.back());
      blocks.pop_back();
      continue;
    }
    describe_tile(walk, place_of(walk, tile.number), tile.number, tile.descriptor);
    taken.push_back(tile);
  }
  EXPECT_EQ(launch.counted, walk.next_tile ? walk.whole + walk.split_ctas : 0)
      << "the last count does not clear the counter";
  return taken;
}

/// Each whole tile is taken once, and each part of a split tile once. The tiles that have queries
/// are those of the problem.
void check_tiles(const WalkProblem& p, const AttentionWalk& walk,
                 const std::vector<TakenTile>& taken) {
  std::set<std::pair<int, int>> parts;
  std::set<int> slots;
  std::vector<std::int64_t> walked(static_cast<std::size_t>(walk.tiles));  // of share.of
  std::vector<int> parts_left(walked.size());
  std::set<std::tuple<int, int, int>> places;
  for (const TakenTile& tile : taken) {
    const KvShare& share = tile.descriptor.share;
    ASSERT_TRUE(tile.number >= 0 && tile.number < walk.tiles) << tile.number;
    ASSERT_TRUE(parts.emplace(tile.number, share.part).second) << "taken twice: " << tile.number;
    ASSERT_TRUE(share.part >= 0 && share.part < share.parts);
    auto& sum = walked[static_cast<std::size_t>(tile.number)];
    auto& left = parts_left[static_cast<std::size_t>(tile.number)];
    left = (left == 0 ? share.parts : left) - 1;
    if (tile.number < walk.whole) {
      ASSERT_TRUE(share.parts == 1 && share.from == 0 && share.to == share.of);
      sum = 1;
    } else {
      ASSERT_TRUE(slots.insert(share.slot + share.part).second) << "two parts have the same slot";
      ASSERT_LT(share.slot + share.part, walk.tiles - walk.whole + walk.split_ctas);
      ASSERT_EQ(share.of, walk.split_ctas);
      sum += share.to - share.from;
    }
    const TileDescriptor& d = tile.descriptor;
    if (d.first_query < d.q_length) places.emplace(d.batch, d.head, d.first_query);
  }
  for (int number = 0; number < walk.tiles; ++number)
    ASSERT_EQ(walked[static_cast<std::size_t>(number)], number < walk.whole ? 1 : walk.split_ctas)
        << "tile " << number;
  for (const int left : parts_left) ASSERT_EQ(left, 0) << "a tile lacks parts";
  std::set<std::tuple<int, int, int>> expected;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t head = 0; head < p.heads; head += walk.pack.divisor)
      for (std::int64_t query = 0; query < p.queries(b); query += walk.queries)
        expected.emplace(b, head, query);
  ASSERT_EQ(places, expected);
}

// ---- Which steps a tile has.

/// One step as the scheduler warp publishes it.
template <int kPieces>
struct Step {
  Piece piece[kPieces];
  std::uint64_t kept[kPieces];
  RowGroupFlags flags[kPieces];
  bool written[kPieces] = {};
  bool published = false;
};

/// The scheduler warp, with a loop over its lanes. Like Scheduler in
/// src/kernels/cuda/sm90/attention/scheduler.cuh, which uses lane indices and ballots instead.
template <Tile kTile>
class Scheduler {
 public:
  static constexpr int kPieces = kTile.n / kKeyPiece;
  static constexpr int kConsumers = kTile.warpgroups;
  static constexpr bool kOwnLists = kTile.row_groups > 1;
  using Pieces = PiecesOfTile<kTile>;
  std::vector<Step<kPieces>> steps;

  Scheduler(const AttentionWalk& walk, const TileDescriptor& tile, int max_waiting, Tally& tally)
      : walk_(walk), tile_(tile), tally_(tally), pieces_(*memory()) {
    if constexpr (kOwnLists) {
      int columns = 0;
      for (int lane = 0; lane < kWarp; ++lane) columns = pieces_.start_row_groups(walk, tile, lane);
      for (int lane = 0; lane < kWarp; ++lane)
        pieces_.name_columns(walk, tile, columns, lane,
                             [](std::uint32_t& word, std::uint32_t bits) { word |= bits; });
    } else {
      for (int lane = 0; lane < kWarp; ++lane) pieces_.start(walk, tile, lane);
    }
    if constexpr (leaves_sooner(kTile)) {
      for (int c = 0; c < kConsumers; ++c)
        find_own_steps<kTile.n, joins_later(kTile)>(walk, tile, pieces_, c, first_step_[c],
                                                    last_step_[c]);
    }
    if constexpr (kOwnLists && kPieces > 1) {
      publish_by_row_groups(max_waiting);
    } else {
      publish_in_order();
    }
    EXPECT_EQ(published_, static_cast<int>(steps.size()));
  }

  const Pieces& pieces() const { return pieces_; }

 private:
  void publish_in_order() {
    using Steps = StepsOfTile<kTile>;
    int placed = 0;
    for (int number = 0; number < pieces_.count; number += kWarp) {
      std::array<Piece, kWarp> found;
      std::uint32_t visited = 0;
      for (int lane = 0; lane < kWarp; ++lane) {
        found[lane] = pieces_.at(walk_, number + lane);
        visited |= std::uint32_t{found[lane].visited} << lane;
      }
      for (int lane = 0; lane < kWarp; ++lane)
        if (found[lane].visited)
          write(found[lane], placed + count_lanes(visited & lanes_below(lane)));
      publish(Steps::followed(placed), Steps::followed(placed + count_lanes(visited)), false);
      placed += count_lanes(visited);
    }
    const int rest = placed % Steps::kRoundPieces, last = Steps::followed(placed);
    if (rest > 0 || placed == 0)
      for (int i = rest; i < Steps::kRoundPieces; ++i) write(Piece{}, last * kPieces + i);
    publish(last, Steps::count(placed), true);
  }

  void publish_by_row_groups(int max_waiting) {
    std::array<PairedSteps, kWarp> lanes{};
    int sent = 0;
    const auto publish_up_to = [&](int end) {
      publish(sent, end, false);
      sent = std::max(sent, end);
    };
    const auto least_lacking = [&] {
      std::uint32_t least = ~0u;
      for (const PairedSteps& lane : lanes)
        least = std::min(least, static_cast<std::uint32_t>(lane.lacking));
      return least;
    };
    for (int number = 0; number < pieces_.count; number += kWarp) {
      std::array<Piece, kWarp> found;
      std::array<std::uint32_t, kWarp> of_set{}, before{};
      std::array<int, kWarp> groups{}, open{};
      for (int lane = 0; lane < kWarp; ++lane) {
        found[lane] = pieces_.at(walk_, number + lane);
        groups[lane] = found[lane].visited ? found[lane].row_groups : 0;
        if (groups[lane] != 0) of_set[groups[lane]] |= 1u << lane;
      }
      std::uint32_t beginning = 0;
      for (int lane = 0; lane < kWarp; ++lane) {
        open[lane] = lanes[groups[lane]].lacking;
        before[lane] = groups[lane] != 0 ? of_set[groups[lane]] & lanes_below(lane) : 0;
        const bool begins = groups[lane] != 0 && PairedSteps::begins(before[lane], open[lane]);
        beginning |= std::uint32_t{begins} << lane;
      }
      for (int lane = 0; lane < kWarp; ++lane)
        if (groups[lane] != 0)
          write(found[lane], lanes[lane].place(lane, before[lane], open[lane],
                                               (beginning >> lane & 1) != 0, beginning));
      for (int lane = 0; lane < kWarp; ++lane) lanes[lane].advance(of_set[lane], beginning);
      for (PairedSteps& lane : lanes) {
        if (!lane.waits_too_long(max_waiting)) continue;
        write(Piece{}, lane.pad());
        ++tally_.padded_early;
      }
      const int end = lanes[0].complete(least_lacking());
      EXPECT_LE(lanes[0].begun - std::max(end, 0), std::max(max_waiting, 1))
          << "too many steps wait";
      publish_up_to(end);
    }
    for (PairedSteps& lane : lanes)
      if (lane.lacking >= 0) write(Piece{}, lane.pad());
    if (lanes[0].begun == 0)
      for (int p = 0; p < kPieces; ++p) write(Piece{}, p);
    publish_up_to(std::max(lanes[0].begun - 1, 0));
    publish(sent, sent + 1, true);
  }

  void write(const Piece& piece, int place) {
    const auto number = static_cast<std::size_t>(place / kPieces);
    if (steps.size() <= number) steps.resize(number + 1);
    Step<kPieces>& step = steps[number];
    const int p = place % kPieces;
    ASSERT_FALSE(step.written[p]) << "two pieces in one place";
    ASSERT_FALSE(step.published) << "written too late";
    step.written[p] = true;
    step.piece[p] = piece;
    step.flags[p] = flags_of(piece);
    step.kept[p] = piece.visited ? pieces_.kept(walk_, tile_, piece) : kAllKeys;
  }

  void publish(int from, int to, bool last) {
    for (int number = from; number < to; ++number) {
      ASSERT_EQ(number, published_++) << "published out of order";
      ASSERT_LT(static_cast<std::size_t>(number), steps.size());
      Step<kPieces>& step = steps[static_cast<std::size_t>(number)];
      for (const bool written : step.written) ASSERT_TRUE(written) << "step " << number;
      step.published = true;
      step.flags[0].last_needed = step.flags[0].last_of_tile = last ? kAllRowGroups : 0;
      if constexpr (leaves_sooner(kTile))
        set_needed(step.flags[0], number, last, first_step_, last_step_);
    }
  }

  /// One object for all tiles, as it is large where tiles have several lists.
  static Pieces* memory() {
    static const auto pieces = std::make_unique<Pieces>();
    return pieces.get();
  }

  const AttentionWalk& walk_;
  const TileDescriptor& tile_;
  Tally& tally_;
  Pieces& pieces_;
  int published_ = 0;
  int first_step_[kConsumers] = {}, last_step_[kConsumers] = {};
};

// ---- Which pairs the consumers compute.

/// The pairs of a problem that have been computed: keys by batch, head and query.
class Coverage {
 public:
  explicit Coverage(const WalkProblem& p) : p_(p) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      first_.push_back(rows_.size());
      rows_.resize(rows_.size() + static_cast<std::size_t>(p.heads * p.queries(b)),
                   Bits(p.keys(b)));
    }
  }
  Bits& row(std::int64_t b, std::int64_t head, std::int64_t query) {
    return rows_[first_[static_cast<std::size_t>(b)] +
                 static_cast<std::size_t>(head * p_.queries(b) + query)];
  }

 private:
  const WalkProblem& p_;
  std::vector<std::size_t> first_;
  std::vector<Bits> rows_;
};

/// The pairs that a problem's queries see.
class Truth {
 public:
  explicit Truth(const WalkProblem& p) : p_(p) {
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t set = 0; set < p.sets(); ++set) {
        first_.push_back(rows_.size());
        for (std::int64_t i = 0; i < p.queries(b); ++i) {
          rows_.push_back(p.keys_of(b, set, i));
          pairs += rows_.back().count();
        }
      }
  }
  const Bits& row(std::int64_t b, std::int64_t set, std::int64_t query) const {
    return rows_[first_[static_cast<std::size_t>(b * p_.sets() + set)] +
                 static_cast<std::size_t>(query)];
  }
  std::int64_t pairs = 0;

 private:
  const WalkProblem& p_;
  std::vector<std::size_t> first_;
  std::vector<Bits> rows_;
};

/// 64 keys of an element mask, as the consumers read them.
std::uint64_t read_bits(const AttentionWalk& walk, const std::uint8_t* data, std::int64_t place) {
  std::uint64_t bits = 0;
  for (int j = 0; j < 8; ++j) bits |= std::uint64_t{data[place + j * walk.bits_byte]} << (8 * j);
  return bits;
}

template <Tile kTile>
class TileCheck {
 public:
  using Warp = Scheduler<kTile>;
  static constexpr int kPieces = Warp::kPieces, kSplits = kTile.kv_splits;
  static constexpr int kSplitConsumers = kTile.warpgroups / kSplits;
  static constexpr int kRowGroups = walk_row_groups(kTile);
  static constexpr int kRowsPerGroup = kTile.m / kRowGroups;

  TileCheck(const WalkProblem& p, const AttentionWalk& walk, const TileDescriptor& tile,
            const std::uint8_t* bits, Coverage& coverage, int max_waiting, Tally& tally)
      : p_(p),
        walk_(walk),
        tile_(tile),
        bits_(bits),
        coverage_(coverage),
        tally_(tally),
        warp_(walk, tile, max_waiting, tally) {}

  void run() {
    ASSERT_EQ(tile_.q_length, p_.queries(tile_.batch));
    ASSERT_EQ(tile_.q_begin, p_.q_begin(tile_.batch));
    ASSERT_EQ(tile_.kv_begin, p_.kv_begin(tile_.batch));
    ASSERT_EQ(tile_.kv_head, tile_.head / (p_.heads / p_.kv_heads));
    ASSERT_EQ(warp_.steps.size() % kSplits, 0u);
    for (std::size_t number = 0; number < warp_.steps.size(); ++number) {
      const bool last = number + kSplits >= warp_.steps.size();
      ASSERT_EQ(warp_.steps[number].flags[0].last_of_tile, last ? kAllRowGroups : 0);
      check_pieces(warp_.steps[number]);
    }
    for (int consumer = 0; consumer < kTile.warpgroups; ++consumer) walk_consumer(consumer);
  }

 private:
  using OneStep = Step<kPieces>;

  int query_of(int row) const { return tile_.first_query + walk_.pack.quotient(row); }
  bool sees_nothing() const {
    const int last_query = std::min(query_of(walk_.rows() - 1), tile_.q_length - 1);
    return tile_.sight.begin_of(tile_.first_query) >= tile_.sight.end_of(last_query);
  }
  bool has_rows(int first_row) const {
    return first_row < walk_.rows() && tile_.reaches(first_row, walk_.pack);
  }
  /// Bits of 64 keys that a query sees by position.
  std::uint64_t in_sight(int query, int key) const { return tile_.sight.bits_of(query, key); }

  /// Checks the place, flags and kept keys of each piece.
  void check_pieces(const OneStep& step) {
    for (int p = 0; p < kPieces; ++p) {
      const Piece& piece = step.piece[p];
      if (!piece.visited) {
        ASSERT_EQ(step.flags[p].masked, kAllRowGroups);
        ASSERT_EQ(piece.key, kOutOfBounds);
        continue;
      }
      ASSERT_EQ(piece.key % kKeyPiece, 0);
      const KeyPlace place = place_of(walk_, tile_, piece);
      ASSERT_EQ(place.row, p_.kv_begin(tile_.batch) + piece.key);
      ASSERT_EQ(place.batch, p_.problem.kv_offsets.data ? 0 : tile_.batch);
      std::uint64_t kept = 0, any_seen = 0;
      for (int g = 0; g < kRowGroups; ++g) {
        const bool needed = !Warp::kOwnLists || (piece.row_groups >> g & 1) != 0;
        if (!needed || !has_rows(g * kRowsPerGroup)) continue;
        bool hides = false;
        for (int row = g * kRowsPerGroup; row < (g + 1) * kRowsPerGroup; ++row) {
          if (!has_rows(row)) break;
          const std::uint64_t seen = in_sight(query_of(row), piece.key);
          hides |= seen != kAllKeys;
          any_seen |= seen;
          kept |= walk_.composed ? seen & element_mask(piece, row) : seen;
        }
        const bool masked = (step.flags[p].masked >> g & 1) != 0;
        ASSERT_EQ(masked, hides || piece.bits != kNoBits) << "flag of row group " << g;
        ++(masked ? tally_.masked_steps : tally_.unmasked_steps);
      }
      // A tile that sees no key still has one step, with any piece.
      ASSERT_TRUE(any_seen != 0 || (sees_nothing() && warp_.steps.size() == kSplits))
          << "keys from " << piece.key << " on are visited for nothing";
      tally_.gaps += piece.gap_end > piece.gap_begin;
      ASSERT_EQ(step.kept[p], kept) << "keys from " << piece.key << " on";
    }
  }

  std::uint64_t element_mask(const Piece& piece, int row) const {
    if (piece.bits == kNoBits) return kAllKeys;
    const int row_of_group = Warp::kOwnLists ? row % kRowsPerGroup : row;
    const std::int64_t word_row = walk_.word_queries.quotient(walk_.pack.quotient(row_of_group));
    return read_bits(walk_, bits_, piece.bits + word_row * walk_.bits_row);
  }

  /// Follows the flags as a consumer does: see consumer_pipeline.cuh.
  void walk_consumer(int consumer) {
    const int split = consumer / kSplitConsumers;
    const int first_row = consumer % kSplitConsumers * kConsumerRows;
    const int group = first_row / kRowsPerGroup;
    if (skips_tiles(kTile) && !has_rows(first_row)) return;
    bool joined = !joins_later(kTile), left = false;
    for (std::size_t number = static_cast<std::size_t>(split); number < warp_.steps.size();
         number += kSplits) {
      const OneStep& step = warp_.steps[number];
      const auto flag = [&](std::uint8_t flags) { return (flags >> group & 1) != 0; };
      bool needed = true;
      if constexpr (Warp::kOwnLists) {
        needed = false;
        for (const RowGroupFlags& flags : step.flags) needed |= flag(flags.needed);
      } else if constexpr (leaves_sooner(kTile)) {
        joined |= flag(step.flags[0].needed);
        needed = joined && !left;
        left |= joined && flag(step.flags[0].last_needed);
      }
      if (needed) {
        compute(step, first_row, group);
      } else {
        ++tally_.skipped_steps;
      }
      const bool last = flag(step.flags[0].last_of_tile);
      ASSERT_EQ(last, number + kSplits >= warp_.steps.size());
      ASSERT_TRUE(!last || left || flag(step.flags[0].last_needed));
    }
    ASSERT_TRUE(joined) << "a consumer waits for a step that never comes";
    ASSERT_TRUE(left || !leaves_sooner(kTile));
  }

  void compute(const OneStep& step, int first_row, int group) {
    bool masked = false;
    for (const RowGroupFlags& flags : step.flags) masked |= (flags.masked >> group & 1) != 0;
    for (int row = first_row; row < first_row + kConsumerRows && has_rows(row); ++row) {
      const int query = query_of(row), head = tile_.head + row % walk_.pack.divisor;
      Bits& computed = coverage_.row(tile_.batch, head, query);
      for (const Piece& piece : step.piece) {
        std::uint64_t seen = kAllKeys;
        if (masked) seen = element_mask(piece, row) & in_sight(query, piece.key);
        ASSERT_TRUE(computed.add(piece.key, seen))
            << "batch " << tile_.batch << ", head " << head << ", query " << query << ": keys from "
            << piece.key << " on are computed twice, or lie outside";
      }
    }
  }

  const WalkProblem& p_;
  const AttentionWalk& walk_;
  const TileDescriptor& tile_;
  const std::uint8_t* bits_;
  Coverage& coverage_;
  Tally& tally_;
  Warp warp_;
};

template <int kRow>
void check_problem(std::uint64_t seed, Tally& tally) {
  constexpr const KernelRow& kKernelRow = kSm90AttentionRows[kRow];
  constexpr Tile kTile = kKernelRow.tile;
  WalkProblem p(seed, kTile);
  const KernelFamily family = sm90_attention_family();
  const auto chosen = static_cast<std::size_t>(seed % std::size(kSmCounts));
  for (std::size_t at = 0; at < std::size(kSmCounts); ++at) {
    DeviceFacts device;
    device.units = kSmCounts[at];
    Reasons reasons;
    family.refuse(p.shape, kKernelRow, device, reasons);
    if (!reasons.none()) return;
    const Layout any_layout = family.layout(p.shape, kKernelRow, device, reasons);
    auto layout = any_layout.get<AttentionLayout>();
    if (!reasons.none()) return;
    if (layout.tiles == 0 || p.shape.q_total == 0) return;
    draw_split(layout, p.random);
    const bool data_tells = p.shape.masked || p.shape.q_packed || p.shape.has_kv_range;
    layout.ordered = data_tells && layout.whole > layout.sms;  // long walks or not
    SCOPED_TRACE(::testing::Message() << kKernelRow.name << ", SMs: " << layout.sms);
    AttentionWalk walk = attention_walk(p.problem, p.shape, layout, kTile);
    ASSERT_EQ(walk.step_pieces, StepsOfTile<kTile>::kRoundPieces);
    const std::vector<TakenTile> taken = take_tiles(walk, layout, p.random);
    check_tiles(p, walk, taken);
    if (::testing::Test::HasFatalFailure()) return;
    if (at != chosen) continue;  // tiles visit the same steps for any number of SMs, except shares

    std::vector<std::uint64_t> memory;
    const std::uint8_t* bits = nullptr;
    if (p.problem.mask.bits) bits = static_cast<const std::uint8_t*>(p.problem.mask.bits.data);
    if (layout.composed) {
      core::Carver sizes;
      carve_composed(sizes, layout.composed);
      memory.assign(static_cast<std::size_t>(sizes.used() / 8), 0xababababababababu);
      core::Carver carver(memory.data());
      const ComposedLists lists = carve_composed(carver, layout.composed);
      testing::compose_rows(composer_of(p.problem, p.shape, layout.composed, lists), 100);
      walk_composed(walk, layout.composed, lists);
      bits = reinterpret_cast<const std::uint8_t*>(lists.bits);
    }
    Coverage coverage(p);
    const int max_waiting = static_cast<int>(p.random.pick({0, 1, 3, 31}));
    for (const TakenTile& tile : taken) {
      const TileDescriptor& d = tile.descriptor;
      if (d.first_query >= d.q_length) continue;
      SCOPED_TRACE(::testing::Message() << "tile " << tile.number << " of batch " << d.batch
                                        << ", head " << d.head << ", query " << d.first_query);
      TileCheck<kTile>(p, walk, d, bits, coverage, max_waiting, tally).run();
      if (::testing::Test::HasFatalFailure()) return;
    }
    const Truth truth(p);
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t head = 0; head < p.heads; ++head)
        for (std::int64_t i = 0; i < p.queries(b); ++i)
          ASSERT_EQ(coverage.row(b, head, i), truth.row(b, p.set_of(head), i))
              << "batch " << b << ", head " << head << ", query " << i;
    ++tally.problems;
    tally.pairs += truth.pairs;
    tally.split += layout.split_ctas > 0;
    tally.dynamic += layout.dynamic();
    tally.ordered += layout.dynamic() && layout.ordered;
    tally.composed += static_cast<bool>(layout.composed);
  }
}

/// Rows for FP8 come last, and walk as those for 16 bits do.
constexpr int kRowCount = static_cast<int>(
    std::count_if(std::begin(kSm90AttentionRows), std::end(kSm90AttentionRows),
                  [](const KernelRow& row) { return row.dtypes == kAttentionDtypes; }));

template <int... kRows>
constexpr auto checks_of(std::integer_sequence<int, kRows...>) {
  return std::array{&check_problem<kRows>...};
}

TEST(WalkTiles, EachVisiblePairOnce) {
  constexpr auto kChecks = checks_of(std::make_integer_sequence<int, kRowCount>());
  constexpr std::uint64_t kSeeds = 14000;
  Tally tally;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    kChecks[seed / std::size(kSmCounts) % kChecks.size()](seed, tally);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(tally.problems, 10000);
  EXPECT_GT(tally.pairs, 100'000'000);
  EXPECT_GT(tally.split, 1000);
  EXPECT_GT(tally.dynamic, 500);
  EXPECT_GT(tally.ordered, 300);
  EXPECT_GT(tally.composed, 1000);
  EXPECT_GT(tally.unmasked_steps, 10000);
  EXPECT_GT(tally.masked_steps, 10000);
  EXPECT_GT(tally.skipped_steps, 1000);
  EXPECT_GT(tally.padded_early, 100);
  EXPECT_GT(tally.gaps, 50);
}

}  // namespace
}  // namespace tessera::planning
