#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/arrivals.cuh"
#include "src/kernels/cuda/sm90/attention/count.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/attention/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/grid.cuh"

namespace tessera::cuda::sm90::attention {

/// One warp that walks tiles and lists, which means waiting for memory, and notes for the others
/// what comes: tile by tile, and step by step.
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
    constexpr int kMaxKept = T::kStepNotes - 32 - 1;
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
      if (lacking >= 0 && begun - lacking > kMaxKept) go_without(lacking, note);
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

}  // namespace tessera::cuda::sm90::attention
