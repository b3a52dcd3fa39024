#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

namespace tessera::cuda::sm90::attention {

/// The scheduler warp: takes tiles, reads lists (and waits for memory, so that no other warp has
/// to), and writes work descriptors, one per tile and one per step.
template <class T>
class Scheduler {
 public:
  __device__ Scheduler(const Arguments& args, typename T::Shared& shared, int lane)
      : args_(args), shared_(shared), lane_(lane) {}

  __device__ void run() {
    shared_.cursor.start(lane());
    const Walk& given = args_.walk;
    bool waits = given.order || given.reads_sequences || given.reads_for_steps;
    if (given.reads_sequences) wait_for_grids_before(), waits = false;
    while (true) {
      const unsigned tile = shared_.cursor.tiles, place = tile % T::kTileDescriptors;
      tile::wait(&shared_.tile_ring.empty[place], tile / T::kTileDescriptors % 2 ^ 1);
      TileDescriptor& descriptor = shared_.tiles[place];
      if (args_.walk.next_tile) wait_for_end_of_walk();
      if (!shared_.cursor.template next<T::kWaitsForGrids>(args_.walk, descriptor, lane())) break;
      if (waits) wait_for_grids_before(), waits = false;
      walk(descriptor);
    }
    announce(shared_.tiles[shared_.cursor.tiles % T::kTileDescriptors], true);
  }

 private:
  using Step = typename T::Step;

  /// With FP8 read anew at each use, so that no register holds it.
  __device__ __forceinline__ int lane() const {
    return T::kNarrow ? thread_of_block() % 32 : lane_;
  }
  /// The place of padding: TMA writes zeros.
  __device__ static planning::KeyPlace nowhere() { return {planning::kOutOfBounds, 0}; }

  /// With ordered tiles the previous grid is order_kernel, which sets `grids_seen` once all earlier
  /// grids have ended. No other grid with the same tag can begin before all CTAs have seen that
  /// value; the last CTA to see it clears it.
  __device__ void wait_for_grids_before() {
    if (!T::kWaitsForGrids) return;
    const Walk& walk = args_.walk;
    if (!walk.order) return wait_for_grid_before();
    if (lane() == 0) {
      while (!planning::LaunchCount::holds(load_acquired(walk.grids_seen), walk.tag, walk.blocks)) {
      }
      count_up(walk.grids_seen, walk.tag, walk.blocks, true);
      __threadfence();
      let_next_grid_begin();
    }
    __syncwarp();
  }

  /// Dynamic tiles: a CTA that takes its next tile too early holds it while other CTAs run out of
  /// work. So the scheduler waits until the producer has loaded all but the last steps of the
  /// current tile.
  __device__ void wait_for_end_of_walk() {
    constexpr std::uint32_t kSooner = 8;  // steps; about the latency of scheduler and producer
    const std::uint32_t steps = shared_.cursor.steps;
    if (steps <= kSooner) return;
    const std::uint32_t step = steps - 1 - kSooner;
    tile::wait(&shared_.step_ring.empty[step % T::kStepDescriptors],
               step / T::kStepDescriptors & 1);
  }

  /// Publishes the steps of one tile: looks up 32 pieces at a time, one per lane. A step is
  /// published when it is known whether it is the last one.
  __device__ void walk(TileDescriptor& descriptor) {
    start_pieces(shared_.pieces, args_.walk, descriptor, lane());
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
    if (lane() == 0) {
      shared_.cursor.steps += steps;
      ++shared_.cursor.tiles;
    }
    __syncwarp();  // all lanes have finished with `pieces`
  }

  /// One list, or none: steps in the order of the pieces. Returns their number.
  __device__ int publish_in_order(const TileDescriptor& descriptor) {
    using Steps = planning::StepsOfTile<T::kTile>;
    int placed = 0;
    for (int number = 0; number < shared_.pieces.count; number += 32) {
      Piece piece = shared_.pieces.at(args_.walk, number + lane());
      const planning::KeyPlace at = find(piece, descriptor);
      const unsigned found = __ballot_sync(~0u, piece.visited);
      if (piece.visited)
        write_piece(piece, at, descriptor, placed + __popc(found & planning::lanes_below(lane())));
      __syncwarp();
      publish(Steps::followed(placed), Steps::followed(placed + __popc(found)), false);
      placed += __popc(found);
    }
    const int rest = placed % T::kRoundPieces, last = Steps::followed(placed);
    if ((rest > 0 || placed == 0) && lane() >= rest && lane() < T::kRoundPieces)
      write_piece(Piece{}, nowhere(), descriptor, last * T::kPieces + lane());
    __syncwarp();
    publish(last, last + T::kKvSplits, true);
    return last + T::kKvSplits;
  }

  /// The same for row groups with a list each: pairs up pieces so that both pieces of a step are
  /// needed by the same row groups.
  __device__ int publish_by_row_groups(const TileDescriptor& descriptor) {
    static_assert(T::kPieces == 2 && 1 << T::kRowGroups <= 32);
    constexpr int kMaxWaiting = T::kStepDescriptors - 32 - 1;
    int sent = 0;
    planning::PairedSteps steps;
    for (int number = 0; number < shared_.pieces.count; number += T::kNarrow ? 0 : 32) {
      Piece piece = shared_.pieces.at(args_.walk, number + lane());
      const planning::KeyPlace at = find(piece, descriptor);
      const int groups = piece.visited ? piece.row_groups : 0;
      // Lanes whose pieces are needed by the same row groups as this lane's; and lanes whose pieces
      // are needed by the set of row groups numbered like this lane.
      unsigned same_groups = 0, own = 0;
#pragma unroll
      for (int set = 1; set < 1 << T::kRowGroups; ++set) {
        const unsigned found = __ballot_sync(~0u, groups == set);
        if (groups == set) same_groups = found;
        if (lane() == set) own = found;
      }
      const int open = __shfl_sync(~0u, steps.lacking, groups);
      const unsigned before = same_groups & planning::lanes_below(lane());
      const bool begins = groups != 0 && steps.begins(before, open);
      const unsigned beginning = __ballot_sync(~0u, begins);
      if (groups != 0)
        write_piece(piece, at, descriptor, steps.place(lane(), before, open, begins, beginning));
      steps.advance(own, beginning);
      if (steps.waits_too_long(kMaxWaiting))
        write_piece(Piece{}, nowhere(), descriptor, steps.pad());
      __syncwarp();
      const unsigned first = __reduce_min_sync(~0u, static_cast<unsigned>(steps.lacking));
      publish_up_to(steps.complete(first), sent);
      if constexpr (T::kNarrow) drop_batch();
    }
    if (steps.lacking >= 0) write_piece(Piece{}, nowhere(), descriptor, steps.pad());
    if (steps.begun == 0 && lane() < 2) write_piece(Piece{}, nowhere(), descriptor, lane());
    __syncwarp();
    publish_up_to(max(steps.begun - 1, 0), sent);
    publish(sent, sent + 1, true);
    return sent + 1;
  }

  /// Drops the batch's pieces: the next batch begins at number 0, which no register has to hold.
  __device__ void drop_batch() {
    __syncwarp();
    if (lane() == 0) shared_.pieces.skip(32);
    __syncwarp();
  }

  __device__ void publish_up_to(int end, int& sent) {
    for (; sent < end; sent = min(sent + 32, end)) publish(sent, min(sent + 32, end), false);
  }

  __device__ void find_own_steps(const TileDescriptor& descriptor) {
    if (lane() < T::kConsumers)
      planning::find_own_steps<T::kN, T::kJoinsLater>(args_.walk, descriptor, shared_.pieces,
                                                      lane(), shared_.first_step[lane()],
                                                      shared_.last_step[lane()]);
    // Pieces whose pages do not exist are left out, so that others are in earlier steps.
    if (args_.pages.table && lane() < T::kConsumers) shared_.first_step[lane()] = 0;
    __syncwarp();
  }

  /// Publishes a tile's descriptor, or that there are no more tiles.
  __device__ void announce(TileDescriptor& descriptor, bool no_more_tiles = false) {
    if (lane() == 0) {
      descriptor.no_more_tiles = no_more_tiles;
      tile::arrive(&shared_.tile_ring.full[shared_.cursor.tiles % T::kTileDescriptors]);
    }
  }

  /// Where a piece is in memory. A piece whose page does not exist is not visited.
  __device__ planning::KeyPlace find(Piece& piece, const TileDescriptor& descriptor) const {
    if (!piece.visited) return nowhere();
    if (!args_.pages.table) return planning::place_of(args_.walk, descriptor, piece);
    const auto run = args_.pages.run(descriptor.batch, piece.key, piece.key + planning::kKeyPiece);
    piece.visited = run.page >= 0;
    return {static_cast<std::int32_t>(run.slot), static_cast<std::int32_t>(run.page)};
  }

  /// Writes one piece, which is at `at` in memory, into its step's descriptor. `place`: index among
  /// the tile's visited pieces.
  __device__ void write_piece(const Piece& piece, const planning::KeyPlace& at,
                              const TileDescriptor& descriptor, int place) {
    const std::uint32_t number = shared_.cursor.steps + place / T::kPieces, p = place % T::kPieces;
    tile::wait(&shared_.step_ring.empty[number % T::kStepDescriptors],
               (number / T::kStepDescriptors & 1) ^ 1);
    Step& step = shared_.steps[number % T::kStepDescriptors];
    step.key[p] = piece.key;
    step.bits[p] = piece.bits;
    step.flags[p] = planning::flags_of(piece);
    if constexpr (T::kNarrow) write_factors(step, p, piece, at, descriptor);
    shared_.places[number % T::kStepDescriptors][p] = at;
    shared_.kept[number % T::kStepDescriptors][p] =
        piece.visited ? shared_.pieces.kept(args_.walk, descriptor, piece) | zeros_of(piece)
                      : kAllKeys;
    if constexpr (kEachLaneArrives)
      tile::arrive(&shared_.step_ring.full[number % T::kStepDescriptors]);
  }

  /// Values that do not exist have the factor 0, which is never a step's largest.
  __device__ void write_factors(Step& step, int p, const Piece& piece, const planning::KeyPlace& at,
                                const TileDescriptor& descriptor) const {
    if (!T::kTransformsScores || !args_.factors_by_step) return;  // plain kernels have one factor
    step.k_factor[p] = 1.0f, step.v_factor[p] = 0.0f;
    if (!piece.visited) return;
    const bool paged = args_.pages.table != nullptr;
    const int outer = paged ? at.batch : descriptor.batch, row = paged ? at.row : piece.key;
    step.k_factor[p] = args_.k_factors.of(outer, descriptor.kv_head, row);
    step.v_factor[p] = args_.v_factors.of(outer, descriptor.kv_head, row);
  }

  /// The keys of a piece that lie outside of the tensor.
  __device__ std::uint64_t zeros_of(const Piece& piece) const {
    return planning::bits_between(args_.zeros_from - piece.key, planning::kKeyPiece);
  }

  /// Publishes steps [from, to) of the tile, one per lane.
  __device__ void publish(int from, int to, bool last) {
    const int mine = from + lane();
    if (mine >= to) return;
    const std::uint32_t number = shared_.cursor.steps + mine, stage = number % T::kStepDescriptors;
    if constexpr (kEachLaneArrives)
      tile::wait(&shared_.step_ring.empty[stage], (number / T::kStepDescriptors & 1) ^ 1);
    RowGroupFlags& flags = shared_.steps[stage].flags[0];
    flags.last_needed = flags.last_of_tile = last ? kAllRowGroups : 0;
    if constexpr (T::kLeavesSooner)
      planning::set_needed(flags, mine, last, shared_.first_step, shared_.last_step);
    tile::arrive(&shared_.step_ring.full[stage]);
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int lane_;
};

}  // namespace tessera::cuda::sm90::attention
