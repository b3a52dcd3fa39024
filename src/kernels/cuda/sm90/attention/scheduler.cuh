#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/arrivals.cuh"
#include "src/kernels/cuda/sm90/attention/count.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/attention/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/grid.cuh"

namespace tessera::cuda::sm90::attention {

/// The scheduler warp: walks tiles and lists, which means waiting for memory, and writes work
/// descriptors for the other warps, one per tile and one per step.
template <class T>
class Scheduler {
 public:
  __device__ Scheduler(const Arguments& args, typename T::Shared& shared, int lane)
      : args_(args), shared_(shared), lane_(lane) {}

  __device__ void run() {
    shared_.cursor.start(lane_);
    const Walk& given = args_.walk;
    bool waits = given.order || given.reads_sequences || given.reads_lists;
    if (given.reads_sequences) wait_for_grids_before(), waits = false;
    while (true) {
      const unsigned tile = shared_.cursor.tiles, place = tile % T::kTileDescriptors;
      tile::wait(&shared_.tile_ring.empty[place], tile / T::kTileDescriptors % 2 ^ 1);
      TileDescriptor& descriptor = shared_.tiles[place];
      if (args_.walk.next_tile) wait_for_end_of_walk();
      if (!shared_.cursor.next(args_.walk, descriptor, lane_)) break;
      if (waits) wait_for_grids_before(), waits = false;
      walk(descriptor);
    }
    announce(shared_.tiles[shared_.cursor.tiles % T::kTileDescriptors], true);
  }

 private:
  using Step = typename T::Step;

  /// Where tiles are ordered, the grid before is the kernel that orders them; it signals when all
  /// earlier grids are done. No grid of the same tag can begin before all blocks have seen that
  /// signal, and the last block to see it clears it.
  __device__ void wait_for_grids_before() {
    const Walk& walk = args_.walk;
    if (!walk.order) return tile::wait_for_grid_before();
    if (lane_ == 0) {
      while (!planning::LaunchCount::holds(load_acquired(walk.grids_seen), walk.tag, walk.blocks)) {
      }
      count_up(walk.grids_seen, walk.tag, walk.blocks, true);
      __threadfence();
      tile::let_next_grid_begin();
    }
    __syncwarp();
  }

  /// A block that takes its next tile too soon holds it while other blocks run out of work: the
  /// scheduler takes it when the producer has almost loaded the current one.
  __device__ void wait_for_end_of_walk() {
    constexpr std::uint32_t kSooner = 8;  // steps: about the latency of scheduler and producer
    const std::uint32_t steps = shared_.cursor.steps;
    if (steps <= kSooner) return;
    const std::uint32_t step = steps - 1 - kSooner;
    tile::wait(&shared_.step_ring.empty[step % T::kStepDescriptors],
               step / T::kStepDescriptors & 1);
  }

  /// Looks up 32 pieces at a time, one per lane. A step is published once it is known whether
  /// another one follows.
  __device__ void walk(TileDescriptor& descriptor) {
    shared_.pieces.start(args_.walk, descriptor, lane_);
    announce(descriptor);
    __syncwarp();
    if constexpr (T::kLeavesSooner) find_own_steps(descriptor);
    int steps;
    if constexpr (T::kOwnLists && T::kPieces > 1) {
      steps = publish_by_row_groups(descriptor);
    } else {
      steps = publish_in_order(descriptor);
    }
    __syncwarp();
    if (lane_ == 0) {
      shared_.cursor.steps += steps;
      ++shared_.cursor.tiles;
    }
    __syncwarp();  // all lanes have read the pieces
  }

  /// Returns the number of steps. All KV splits get equally many; the last may have no pieces, like
  /// the only step of a tile that sees no keys.
  __device__ int publish_in_order(const TileDescriptor& descriptor) {
    int placed = 0;
    for (int number = 0; number < shared_.pieces.count; number += 32) {
      const Piece piece = shared_.pieces.at(args_.walk, number + lane_);
      const unsigned found = __ballot_sync(~0u, piece.visited);
      if (piece.visited)
        write_piece(piece, descriptor, placed + __popc(found & lanes_below(lane_)));
      __syncwarp();
      publish(followed(placed), followed(placed + __popc(found)), false);
      placed += __popc(found);
    }
    const int rest = placed % T::kRoundPieces, last = followed(placed);
    if ((rest > 0 || placed == 0) && lane_ >= rest && lane_ < T::kRoundPieces)
      write_piece(Piece{}, descriptor, last * T::kPieces + lane_);
    __syncwarp();
    publish(last, last + T::kKvSplits, true);
    return last + T::kKvSplits;
  }

  /// The same for row groups with their own lists: both pieces of a step are needed by the same row
  /// groups. Steps are numbered in the order of their first pieces. A step without its second piece
  /// delays the steps after it; before too many wait, it is published with one piece.
  __device__ int publish_by_row_groups(const TileDescriptor& descriptor) {
    static_assert(T::kPieces == 2 && 1 << T::kRowGroups <= 32);
    constexpr int kMaxWaiting = T::kStepDescriptors - 32 - 1;
    // `lacking`, one lane per set of row groups: the set's step that lacks a piece, or -1.
    int lacking = -1, begun = 0, sent = 0;
    for (int number = 0; number < shared_.pieces.count; number += 32) {
      const Piece piece = shared_.pieces.at(args_.walk, number + lane_);
      const int groups = piece.visited ? piece.row_groups : 0;
      // Lanes whose pieces are for the same row groups as this lane's, and for the set of this
      // lane's number.
      unsigned same_groups = 0, own = 0;
#pragma unroll
      for (int set = 1; set < 1 << T::kRowGroups; ++set) {
        const unsigned found = __ballot_sync(~0u, groups == set);
        if (groups == set) same_groups = found;
        if (lane_ == set) own = found;
      }
      const int open = __shfl_sync(~0u, lacking, groups);
      const unsigned before = same_groups & lanes_below(lane_);
      const bool begins = groups != 0 && (__popc(before) + (open >= 0)) % 2 == 0;
      const unsigned beginning = __ballot_sync(~0u, begins);
      const auto step_of = [&](int lane) { return begun + __popc(beginning & lanes_below(lane)); };
      if (groups != 0) {
        const int step = begins ? step_of(lane_) : before ? step_of(last_lane(before)) : open;
        write_piece(piece, descriptor, step * 2 + !begins);
      }
      if (own != 0) {
        const int last = last_lane(own);
        lacking = (beginning >> last & 1) != 0 ? step_of(last) : -1;
      }
      begun += __popc(beginning);
      if (lacking >= 0 && begun - lacking > kMaxWaiting) pad_with_empty_piece(lacking, descriptor);
      __syncwarp();
      const unsigned first = __reduce_min_sync(~0u, static_cast<unsigned>(lacking));
      publish_up_to(min(first, static_cast<unsigned>(begun - 1)), sent);
    }
    if (lacking >= 0) pad_with_empty_piece(lacking, descriptor);
    if (begun == 0 && lane_ < 2) write_piece(Piece{}, descriptor, lane_);
    __syncwarp();
    publish_up_to(max(begun - 1, 0), sent);
    publish(sent, sent + 1, true);
    return sent + 1;
  }

  __device__ void pad_with_empty_piece(int& lacking, const TileDescriptor& descriptor) {
    write_piece(Piece{}, descriptor, lacking * 2 + 1);
    lacking = -1;
  }

  __device__ void publish_up_to(int end, int& sent) {
    for (; sent < end; sent = min(sent + 32, end)) publish(sent, min(sent + 32, end), false);
  }

  __device__ static unsigned lanes_below(int lane) { return (1u << lane) - 1; }
  __device__ static int last_lane(unsigned lanes) { return 31 - __clz(lanes); }

  /// Where all keys of a range are walked: the first and the last step in which each consumer's
  /// rows see a key. A consumer that sees no key gets the step nearest to what it would see.
  __device__ void find_own_steps(const TileDescriptor& descriptor) {
    if (lane_ < T::kConsumers) {
      int &first_needed = shared_.first_step[lane_], &last = shared_.last_step[lane_];
      first_needed = 0;
      last = kOutOfBounds;
      const int first = descriptor.first_query + (lane_ * T::kRows >> args_.walk.pack_shift);
      const int last_query =
          descriptor.first_query + ((lane_ + 1) * T::kRows - 1 >> args_.walk.pack_shift);
      if (shared_.pieces.per_block == 0 && descriptor.share.parts == 1 &&
          first < descriptor.q_length) {
        const int walked = shared_.pieces.begin * planning::kKeyPiece;
        if constexpr (T::kJoinsLater) {
          const int final = max(shared_.pieces.count - 1, 0) / T::kPieces;
          first_needed = min(max(descriptor.sight.begin_of(first) - walked, 0) / T::kN, final);
        }
        const int end = descriptor.sight.end_of(min(last_query, descriptor.q_length - 1)) - walked;
        last = max((end - 1) / T::kN, first_needed);
      }
    }
    __syncwarp();
  }

  /// The number of steps that another step of the same KV split is known to follow, after so many
  /// pieces.
  __device__ static int followed(int placed) {
    return max((placed + T::kRoundPieces - 1) / T::kRoundPieces - 1, 0) * T::kKvSplits;
  }

  __device__ void announce(TileDescriptor& descriptor, bool no_more_tiles = false) {
    if (lane_ == 0) {
      descriptor.no_more_tiles = no_more_tiles;
      tile::arrive(&shared_.tile_ring.full[shared_.cursor.tiles % T::kTileDescriptors]);
    }
  }

  /// Writes one piece of the tile, by its place among the visited pieces.
  __device__ void write_piece(const Piece& piece, const TileDescriptor& descriptor, int place) {
    const std::uint32_t number = shared_.cursor.steps + place / T::kPieces, p = place % T::kPieces;
    tile::wait(&shared_.step_ring.empty[number % T::kStepDescriptors],
               (number / T::kStepDescriptors & 1) ^ 1);
    Step& step = shared_.steps[number % T::kStepDescriptors];
    step.key[p] = piece.key;
    step.bits[p] = piece.bits;
    step.flags[p] = {.masked = piece.visited ? piece.masked : kAllRowGroups,
                     .needed = piece.row_groups};
    shared_.kept[number % T::kStepDescriptors][p] =
        piece.visited ? kept_of(piece, descriptor) : kAllKeys;
    if constexpr (kEachLaneArrives)
      tile::arrive(&shared_.step_ring.full[number % T::kStepDescriptors]);
  }

  /// The keys of a piece that some query of its row groups sees.
  __device__ std::uint64_t kept_of(const Piece& piece, const TileDescriptor& descriptor) const {
    using planning::bits_between;
    const Walk& walk = args_.walk;
    const int key = piece.key;
    std::uint64_t kept;
    int first = descriptor.first_query;
    if constexpr (T::kOwnLists) {
      kept = bits_between(piece.begin - key, piece.end - key) &
             ~bits_between(piece.gap_begin - key, piece.gap_end - key);
      first += (__ffs(piece.row_groups) - 1) * static_cast<int>(walk.mask.block_q);
    } else {
      kept = bits_between(shared_.pieces.any_begin - key, shared_.pieces.any_end - key);
    }
    if (walk.composed && piece.bits != kNoBits) {
      const planning::ComposedBits bits{walk.composed + piece.bits / sizeof(std::uint64_t),
                                        walk.words, walk.word_queries.divisor};
      const int end = min(first + static_cast<int>(walk.mask.block_q), descriptor.q_length);
      kept &= bits.met(descriptor.sight, first, end, key);
    }
    return kept;
  }

  /// Publishes steps [from, to) of the tile.
  __device__ void publish(int from, int to, bool last) {
    const int mine = from + lane_;
    if (mine >= to) return;
    const std::uint32_t number = shared_.cursor.steps + mine, stage = number % T::kStepDescriptors;
    if constexpr (kEachLaneArrives)
      tile::wait(&shared_.step_ring.empty[stage], (number / T::kStepDescriptors & 1) ^ 1);
    RowGroupFlags& flags = shared_.steps[stage].flags[0];
    flags.last_needed = flags.last_of_tile = last ? kAllRowGroups : 0;
    if constexpr (T::kLeavesSooner) {
      unsigned needed = 0, last_needed = 0;
#pragma unroll
      for (int c = 0; c < T::kConsumers; ++c) {
        const int last_step = shared_.last_step[c];
        if (shared_.first_step[c] <= mine) needed |= 1u << c;
        if (last_step == mine || (last && last_step > mine)) last_needed |= 1u << c;
      }
      flags.needed = static_cast<std::uint8_t>(needed);
      flags.last_needed = static_cast<std::uint8_t>(last_needed);
    }
    tile::arrive(&shared_.step_ring.full[stage]);
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int lane_;
};

}  // namespace tessera::cuda::sm90::attention
