#pragma once

#include <cstdint>

#include "src/cuda/sm90/attention/arrivals.cuh"
#include "src/cuda/sm90/attention/boxes.cuh"
#include "src/cuda/sm90/attention/traits.cuh"
#include "src/cuda/sm90/attention/walk.cuh"
#include "src/cuda/tile/barrier.cuh"
#include "src/cuda/tile/copy.cuh"

// Three warps fill the rings. The scout walks tiles and lists, which means waiting for memory; the
// loader follows its notes step by step; the clearer puts zeros over values that nobody may see.
namespace tessera::cuda::sm90::attention {

template <class T>
class Scout {
 public:
  __device__ Scout(const Arguments& args, typename T::Shared& shared, int lane)
      : args_(args), shared_(shared), lane_(lane) {}

  __device__ void run() {
    shared_.cursor.start(lane_);
    const Walk& given = args_.walk;
    bool waits = given.order || given.reads_sequences || given.reads_lists;
    if (given.reads_sequences) wait_for_grids_before(), waits = false;
    while (true) {
      const unsigned tile = shared_.cursor.tiles, place = tile % T::kTileNotes;
      tile::wait(&shared_.tile_ring.empty[place], tile / T::kTileNotes % 2 ^ 1);
      TileNote& note = shared_.tiles[place];
      if (args_.walk.dealt) wait_for_the_end_of_the_walk();
      if (!shared_.cursor.next(args_.walk, note, lane_)) break;
      if (waits) wait_for_grids_before(), waits = false;
      walk(note);
    }
    announce(shared_.tiles[shared_.cursor.tiles % T::kTileNotes], true);
  }

 private:
  using Step = typename T::Step;

  /// Where tiles are ordered, the grid before is the one that does it, and says when those before
  /// it are done. No grid of the same tag can begin before all blocks have seen that, and the last
  /// one cleared it.
  __device__ void wait_for_grids_before() {
    const Walk& walk = args_.walk;
    if (!walk.order) return tile::wait_for_grid_before();
    if (lane_ == 0) {
      while (!planning::LaunchCount::holds(load_acquired(walk.opened), walk.tag, walk.blocks)) {
      }
      count_up(walk.opened, walk.tag, walk.blocks, true);
      __threadfence();
      tile::let_next_grid_begin();
    }
    __syncwarp();
  }

  /// A block that asks for its next tile too soon holds it while others run out of work: it asks
  /// when the loader is about to have loaded this one.
  __device__ void wait_for_the_end_of_the_walk() {
    constexpr std::uint32_t kSooner = 8;  // steps, of what the scout and the loader take
    const std::uint32_t steps = shared_.cursor.steps;
    if (steps <= kSooner) return;
    const std::uint32_t step = steps - 1 - kSooner;
    tile::wait(&shared_.step_ring.empty[step % T::kStepNotes], step / T::kStepNotes & 1);
  }

  /// 32 pieces at a time, a lane each. A step is sent when it is known whether another follows.
  __device__ void walk(TileNote& note) {
    shared_.pieces.start(args_.walk, note, lane_);
    announce(note);
    __syncwarp();
    if constexpr (T::kLeavesSooner) find_own_steps(note);
    int steps;
    if constexpr (T::kOwnLists && T::kPieces > 1) {
      steps = send_by_lines(note);
    } else {
      steps = send_in_order(note);
    }
    __syncwarp();
    if (lane_ == 0) {
      shared_.cursor.steps += steps;
      ++shared_.cursor.tiles;
    }
    __syncwarp();  // all have read the pieces
  }

  /// Returns how many steps. All teams get as many, the last of which may be of no pieces, as the
  /// only one of a tile that sees no keys is.
  __device__ int send_in_order(const TileNote& note) {
    int placed = 0;
    for (int number = 0; number < shared_.pieces.count; number += 32) {
      const Piece piece = shared_.pieces.at(args_.walk, number + lane_);
      const unsigned found = __ballot_sync(~0u, piece.visited);
      if (piece.visited) put(piece, note, placed + __popc(found & lanes_below(lane_)));
      __syncwarp();
      send(followed(placed), followed(placed + __popc(found)), false);
      placed += __popc(found);
    }
    const int rest = placed % T::kRoundPieces, last = followed(placed);
    if ((rest > 0 || placed == 0) && lane_ >= rest && lane_ < T::kRoundPieces)
      put(Piece{}, note, last * T::kPieces + lane_);
    __syncwarp();
    send(last, last + T::kTeams, true);
    return last + T::kTeams;
  }

  /// The same where lines have lists of their own: both pieces of a step are needed by the same
  /// lines. Steps begin in the order of their first pieces, and one that lacks the second keeps
  /// those behind it back; before they are too many, it goes without.
  __device__ int send_by_lines(const TileNote& note) {
    static_assert(T::kPieces == 2 && 1 << T::kLines <= 32);
    constexpr int kMostKept = T::kStepNotes - 32 - 1;
    // `lacking`, a lane each set of lines: the step of theirs that lacks a piece, or -1.
    int lacking = -1, begun = 0, sent = 0;
    for (int number = 0; number < shared_.pieces.count; number += 32) {
      const Piece piece = shared_.pieces.at(args_.walk, number + lane_);
      const int lines = piece.visited ? piece.lines : 0;
      // Lanes whose pieces are for the same lines as this one, and for the set of its number.
      unsigned alike = 0, own = 0;
#pragma unroll
      for (int set = 1; set < 1 << T::kLines; ++set) {
        const unsigned found = __ballot_sync(~0u, lines == set);
        if (lines == set) alike = found;
        if (lane_ == set) own = found;
      }
      const int open = __shfl_sync(~0u, lacking, lines);
      const unsigned before = alike & lanes_below(lane_);
      const bool begins = lines != 0 && (__popc(before) + (open >= 0)) % 2 == 0;
      const unsigned beginning = __ballot_sync(~0u, begins);
      const auto step_of = [&](int lane) { return begun + __popc(beginning & lanes_below(lane)); };
      if (lines != 0) {
        const int step = begins ? step_of(lane_) : before ? step_of(last_lane(before)) : open;
        put(piece, note, step * 2 + !begins);
      }
      if (own != 0) {
        const int last = last_lane(own);
        lacking = (beginning >> last & 1) != 0 ? step_of(last) : -1;
      }
      begun += __popc(beginning);
      if (lacking >= 0 && begun - lacking > kMostKept) go_without(lacking, note);
      __syncwarp();
      const unsigned first = __reduce_min_sync(~0u, static_cast<unsigned>(lacking));
      send_up_to(min(first, static_cast<unsigned>(begun - 1)), sent);
    }
    if (lacking >= 0) go_without(lacking, note);
    if (begun == 0 && lane_ < 2) put(Piece{}, note, lane_);
    __syncwarp();
    send_up_to(max(begun - 1, 0), sent);
    send(sent, sent + 1, true);
    return sent + 1;
  }

  __device__ void go_without(int& lacking, const TileNote& note) {
    put(Piece{}, note, lacking * 2 + 1);
    lacking = -1;
  }

  __device__ void send_up_to(int end, int& sent) {
    for (; sent < end; sent = min(sent + 32, end)) send(sent, min(sent + 32, end), false);
  }

  __device__ static unsigned lanes_below(int lane) { return (1u << lane) - 1; }
  __device__ static int last_lane(unsigned lanes) { return 31 - __clz(lanes); }

  /// The steps, of a range of keys that is walked whole, of which consumers see something. Who sees
  /// nothing takes the step that is next to what it would see.
  __device__ void find_own_steps(const TileNote& note) {
    if (lane_ < T::kConsumers) {
      int &joins = shared_.first_step[lane_], &last = shared_.last_step[lane_];
      joins = 0;
      last = kNowhere;
      const int first = note.first_query + (lane_ * T::kRows >> args_.walk.pack_shift);
      const int most = note.first_query + ((lane_ + 1) * T::kRows - 1 >> args_.walk.pack_shift);
      if (shared_.pieces.per_block == 0 && note.share.parts == 1 && first < note.q_length) {
        const int walked = shared_.pieces.begin * planning::kKeyPiece;
        if constexpr (T::kJoinsLater) {
          const int final = max(shared_.pieces.count - 1, 0) / T::kPieces;
          joins = min(max(note.sight.begin_of(first) - walked, 0) / T::kN, final);
        }
        const int end = note.sight.end_of(min(most, note.q_length - 1)) - walked;
        last = max((end - 1) / T::kN, joins);
      }
    }
    __syncwarp();
  }

  /// Steps that are known to be followed by another of the same team, after so many pieces.
  __device__ static int followed(int placed) {
    return max((placed + T::kRoundPieces - 1) / T::kRoundPieces - 1, 0) * T::kTeams;
  }

  __device__ void announce(TileNote& note, bool ends_all = false) {
    if (lane_ == 0) {
      note.ends_all = ends_all;
      tile::arrive(&shared_.tile_ring.full[shared_.cursor.tiles % T::kTileNotes]);
    }
  }

  /// One piece of the tile by its place among those that are visited.
  __device__ void put(const Piece& piece, const TileNote& note, int place) {
    const std::uint32_t number = shared_.cursor.steps + place / T::kPieces, p = place % T::kPieces;
    tile::wait(&shared_.step_ring.empty[number % T::kStepNotes], (number / T::kStepNotes & 1) ^ 1);
    Step& step = shared_.steps[number % T::kStepNotes];
    step.key[p] = piece.key;
    step.bits[p] = piece.bits;
    step.lines[p] = {.masked = piece.visited ? piece.masked : kAllLines, .needed = piece.lines};
    shared_.kept[number % T::kStepNotes][p] = piece.visited ? kept_of(piece, note) : kAllKeys;
    if constexpr (kEachLaneArrives) tile::arrive(&shared_.step_ring.full[number % T::kStepNotes]);
  }

  /// Keys of a piece that some query for which it is loaded sees.
  __device__ std::uint64_t kept_of(const Piece& piece, const TileNote& note) const {
    using planning::bits_between;
    const Walk& walk = args_.walk;
    const int key = piece.key;
    std::uint64_t kept;
    int first = note.first_query;
    if constexpr (T::kOwnLists) {
      kept = bits_between(piece.begin - key, piece.end - key) &
             ~bits_between(piece.gap_begin - key, piece.gap_end - key);
      first += (__ffs(piece.lines) - 1) * static_cast<int>(walk.mask.block_q);
    } else {
      kept = bits_between(shared_.pieces.any_begin - key, shared_.pieces.any_end - key);
    }
    if (walk.composed && piece.bits != kNoBits) {
      const planning::ComposedBits bits{walk.composed + piece.bits / sizeof(std::uint64_t),
                                        walk.words, walk.word_queries.divisor};
      const int end = min(first + static_cast<int>(walk.mask.block_q), note.q_length);
      kept &= bits.met(note.sight, first, end, key);
    }
    return kept;
  }

  /// Steps [from, to) of the tile.
  __device__ void send(int from, int to, bool last) {
    const int mine = from + lane_;
    if (mine >= to) return;
    const std::uint32_t number = shared_.cursor.steps + mine, stage = number % T::kStepNotes;
    if constexpr (kEachLaneArrives)
      tile::wait(&shared_.step_ring.empty[stage], (number / T::kStepNotes & 1) ^ 1);
    LineBits& lines = shared_.steps[stage].lines[0];
    lines.leaves = lines.ends = last ? kAllLines : 0;
    if constexpr (T::kLeavesSooner) {
      unsigned joined = 0, leaves = 0;
#pragma unroll
      for (int c = 0; c < T::kConsumers; ++c) {
        const int its_last = shared_.last_step[c];
        if (shared_.first_step[c] <= mine) joined |= 1u << c;
        if (its_last == mine || (last && its_last > mine)) leaves |= 1u << c;
      }
      lines.needed = static_cast<std::uint8_t>(joined);
      lines.leaves = static_cast<std::uint8_t>(leaves);
    }
    tile::arrive(&shared_.step_ring.full[stage]);
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int lane_;
};

/// One lane, elected: the compiler has to know that it is one.
template <class T>
class Loader {
 public:
  __device__ Loader(const Arguments& args, typename T::Shared& shared)
      : args_(args), shared_(shared) {}

  __device__ void run() {
    wait_for_grids_before();
    while (true) {
      const unsigned place = tile_ % T::kTileNotes;
      tile::wait(&shared_.tile_ring.full[place], tile_ / T::kTileNotes % 2);
      const TileNote& note = shared_.tiles[place];
      if (!T::kStoresItself && asked_ == tile_) ask_for_queries(note);
      ++tile_;
      if (!note.ends_all) walk(note);
      if (T::kStoresItself && asked_ < tile_) ask_for_queries(note);
      if (note.ends_all) break;
      tile::arrive(&shared_.tile_ring.empty[(tile_ - 1) % T::kTileNotes]);
    }
    finish();
  }

 private:
  using Step = typename T::Step;

  /// Nothing was read or written before, but for what the scout had to know.
  __device__ void wait_for_grids_before() {
    if (args_.walk.order) {
      tile::wait(&shared_.tile_ring.full[0], 0);  // the scout has seen that they are done
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_global);
    } else {
      tile::wait_for_grid_before();
    }
  }

  __device__ void ask_for_queries(const TileNote& note) {
    const unsigned q = asked_ % T::kQueryStages;
    tile::wait(&shared_.q_ring.empty[q], asked_ / T::kQueryStages % 2 ^ 1);
    load_queries(note);
  }

  __device__ void load_queries(const TileNote& note) {
    const unsigned q = asked_++ % T::kQueryStages;
    std::uint64_t* full = &shared_.q_ring.full[q];
    if (note.ends_all) {
      tile::arrive(full);
    } else {
      constexpr int kPanels = T::kDim / T::Queries::kLine;
      tile::arrive_expecting(full, kPanels * T::Queries::kPanelBytes);
      const int head_group = note.head >> args_.walk.pack_shift;
#pragma unroll
      for (int p = 0; p < kPanels; ++p)
        copy_once(tile::shared_address(shared_.q[q].panel(p)), args_.q, p * T::Queries::kLine, 0,
                  note.q_begin + note.first_query, head_group, args_.walk.packed_q ? 0 : note.batch,
                  tile::shared_address(full));
    }
  }

  /// The next tile's queries, as soon as it is known and there is room, without waiting.
  __device__ void look_ahead() {
    using tile::ptx::mbarrier_test_wait_parity;
    if (asked_ > tile_) return;
    const unsigned place = tile_ % T::kTileNotes, q = asked_ % T::kQueryStages;
    if (mbarrier_test_wait_parity(&shared_.tile_ring.full[place], tile_ / T::kTileNotes % 2) &&
        mbarrier_test_wait_parity(&shared_.q_ring.empty[q], asked_ / T::kQueryStages % 2 ^ 1))
      load_queries(shared_.tiles[place]);
  }

  /// Keys and values in turns, one step after the other. Consumers rely on that where they read a
  /// step's keys again after giving them back: until the values of the step before are given back
  /// too, no later keys take their stage.
  __device__ void walk(const TileNote& note) {
    const int batch = args_.walk.sequences.kv_offsets.values ? 0 : note.batch;
    // Where queries wait for those before them to be read, the first keys come sooner.
    int free = T::kStages - 1;
    for (bool last = false; !last;) {
      const unsigned place = step_ % T::kStepNotes;
      tile::wait(&shared_.step_ring.full[place], step_ / T::kStepNotes % 2);
      const Step& step = shared_.steps[place];
      last = step.lines[0].ends && step_ % T::kTeams == T::kTeams - 1;

      tile::wait(&shared_.k_ring.empty[at_.stage], at_.parity ^ 1);
      shared_.notes[at_.stage] = step;
      tile::arrive_expecting(&shared_.k_ring.full[at_.stage], T::Keys::kBytes);
      const auto keys = [&](int panel, int row) {
        return shared_.rings.keys(at_.stage).panel(panel, row);
      };
      copy<typename T::Keys>(keys, args_.k, step, note, batch, &shared_.k_ring.full[at_.stage]);
      if (T::kStoresItself && free-- == 0) ask_for_queries(note);

      tile::wait(&shared_.v_ring.empty[at_.stage], at_.parity ^ 1);
      std::uint64_t* full = &shared_.v_ring.full[at_.stage];
      if (is_ragged(shared_.kept[place])) {
        order_clearing(shared_.kept[place]);
        full = &shared_.landed[at_.stage];
      }
      tile::arrive_expecting(full, T::Values::kBytes);
      const auto values = [&](int panel, int row) {
        return shared_.rings.values(at_.stage, panel, row);
      };
      copy<typename T::Values>(values, args_.v, step, note, batch, full);
      tile::arrive(&shared_.step_ring.empty[place]);
      ++step_;
      at_.advance();
      if constexpr (!T::kStoresItself) look_ahead();
    }
  }

  template <class Rows>
  __device__ void copy(const auto& place, const CUtensorMap& from, const Step& step,
                       const TileNote& note, int batch, std::uint64_t* full) {
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
#pragma unroll
      for (int p = 0; p < Rows::kPanels; ++p)
        copy_kept(tile::shared_address(place(p, piece * planning::kKeyPiece)), from,
                  p * Rows::kLine, note.kv_begin + step.key[piece], note.kv_head, batch,
                  tile::shared_address(full));
  }

  /// Whether keys come along that nobody sees.
  __device__ static bool is_ragged(const std::uint64_t (&kept)[T::kPieces]) {
    std::uint64_t all = kAllKeys;
#pragma unroll
    for (const std::uint64_t keys : kept) all &= keys;
    return all != kAllKeys;
  }

  __device__ void order_clearing(const std::uint64_t (&kept)[T::kPieces]) {
    auto& clearing = next_clearing();
    clearing.stage = at_.stage;
#pragma unroll
    for (int p = 0; p < T::kPieces; ++p) clearing.kept[p] = kept[p];
    tile::arrive(&shared_.clearing_ring.full[clearing_++ % T::kClearings]);
  }

  __device__ typename T::Clearing& next_clearing() {
    const unsigned place = clearing_ % T::kClearings;
    tile::wait(&shared_.clearing_ring.empty[place], clearing_ / T::kClearings % 2 ^ 1);
    return shared_.clearings[place];
  }

  __device__ void finish() {
    next_clearing().stage = -1;
    tile::arrive(&shared_.clearing_ring.full[clearing_ % T::kClearings]);
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  tile::RingCursor<T::kStages> at_;
  // How many came before. `asked_`: tiles whose queries are under way.
  unsigned tile_ = 0, asked_ = 0, step_ = 0, clearing_ = 0;
};

/// Values of keys that no query of the tile sees may be NaN, and zero times NaN is NaN: they become
/// zeros before the consumers see them.
template <class T>
__device__ __forceinline__ void clear_ragged_values(typename T::Shared& shared, int lane) {
  tile::RingCursor<T::kClearings> at;
  std::uint32_t parities = 0;  // of `landed`, a bit a stage
  while (true) {
    tile::wait(&shared.clearing_ring.full[at.stage], at.parity);
    const typename T::Clearing& clearing = shared.clearings[at.stage];
    const int stage = clearing.stage;
    if (stage < 0) return;
    tile::wait(&shared.landed[stage], parities >> stage & 1);
    parities ^= 1u << stage;
    constexpr int kLanes = T::Values::kLineBytes / 16;  // a line
#pragma unroll 1
    for (int piece = 0; piece < T::kPieces; ++piece) {
      const std::uint64_t kept = clearing.kept[piece];
#pragma unroll 1
      for (int row = lane / kLanes; row < planning::kKeyPiece; row += 32 / kLanes) {
        if ((kept >> row & 1) != 0) continue;
#pragma unroll
        for (int p = 0; p < T::Values::kPanels; ++p)
          reinterpret_cast<uint4*>(shared.rings.values(
              stage, p, piece * planning::kKeyPiece + row))[lane % kLanes] = uint4{};
      }
    }
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    arrive_as_warp(shared.clearing_ring.empty[at.stage], lane);
    if (lane == 0) tile::arrive(&shared.v_ring.full[stage]);
    at.advance();
  }
}

}  // namespace tessera::cuda::sm90::attention
