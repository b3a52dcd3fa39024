#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/decode/traits.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/walk/lanes.hpp"

// The finder warp walks the tiles of the CTA's share and looks up 32 pieces at a time; the loader
// warp loads them. So the reads of the next tile's list and page numbers, which follow each other,
// do not hold up the loads of this one.
namespace tessera::cuda::sm90::decode {

template <class T>
struct Finder {
  using Shared = typename T::Shared;

  const Arguments& args;
  Shared& shared;
  const int lane = threadIdx.x % 32;
  planning::DecodeShares shares;
  tile::RingCursor<T::kTiles> tile_at;
  tile::RingCursor<T::kBatches> batch_at;

  /// `found`: the shares of the strand's CTAs, unless entries are few.
  __device__ void run(planning::DecodeShares found) {
    const typename T::Tiles tiles{args.walk, args.walk.strands.rest(static_cast<int>(blockIdx.x))};
    Entries entries(tiles, shared, lane);
    if (entries.few)
      found =
          planning::DecodeShares::of_strand(args.walk, tiles.strand, entries.units_of_all(tiles));
    shares = found;
    const int cta = args.walk.strands.quotient(static_cast<int>(blockIdx.x));
    const std::int64_t begin = shares.begin(cta), end = shares.begin(cta + 1);
    if (begin < end) find_pieces(tiles, entries, cta, begin, end);
    tile::wait(&shared.tile_ring.empty[tile_at.stage], tile_at.parity ^ 1);
    if (lane == 0) {
      shared.tiles[tile_at.stage].no_more_tiles = true;
      tile::arrive(&shared.tile_ring.full[tile_at.stage]);
    }
    begin_batch();
    end_batch(0, 0);
  }

 private:
  struct Entries;

  __device__ void find_pieces(const typename T::Tiles& tiles, Entries& entries, int cta,
                              std::int64_t at, std::int64_t end) {
    while (at < end) {
      const std::int64_t begin = entries.move_to(tiles, at, lane);
      const planning::DecodeTile found = tiles.find(entries.found, at - begin, entries.of_found);
      planning::TileParts parts(args.walk, shares, cta, begin + found.begin, found);
      planning::KvShare share;
      while (parts.next(share)) find_pieces(found, share);
      at = begin + found.begin + planning::units_of(found.pieces);
    }
  }

  /// The units of 32 entries, one per lane.
  struct Entries {
    const Shared& shared;
    const bool few;                      // no more entries than lanes
    std::int64_t before, mine, through;  // units before all, of this lane's, up to this lane's
    int first, found;
    std::int64_t of_found = 0;  // units of entry `found`

    __device__ Entries(const typename T::Tiles& tiles, const Shared& shared, int lane)
        : shared(shared), few(tiles.walk.entries() <= kLanes) {
      before = few ? 0 : shared.first_units;
      found = first = few ? 0 : shared.first_entry;
      count(tiles, lane);
    }
    /// The units of all entries, if they are few.
    __device__ std::int64_t units_of_all(const typename T::Tiles& tiles) const {
      return __shfl_sync(kAllLanes, through, tiles.walk.entries() - 1);
    }
    /// Finds the entry that contains a unit. Returns its first unit.
    __device__ std::int64_t move_to(const typename T::Tiles& tiles, std::int64_t unit, int lane) {
      while (true) {
        const unsigned beyond = __ballot_sync(kAllLanes, through > unit - before);
        if (beyond != 0) {
          const int holder = planning::first_lane(beyond);
          found = first + holder;
          of_found = __shfl_sync(kAllLanes, mine, holder);
          return before + __shfl_sync(kAllLanes, through - mine, holder);
        }
        before += __shfl_sync(kAllLanes, through, 31);
        first += 32;
        count(tiles, lane);
      }
    }

   private:
    __device__ void count(const typename T::Tiles& tiles, int lane) {
      const int entry = first + lane;
      const int entries = tiles.walk.entries();
      mine = 0;
      if (entry < entries)
        mine = few || entries > T::kCounted ? tiles.units(entry) : shared.units[entry];
      through = entries > 1 ? sum_through(lane, mine) : mine;
    }
  };

  __device__ void find_pieces(const planning::DecodeTile& found, const planning::KvShare& share) {
    TileDescriptor& descriptor = shared.tiles[tile_at.stage];
    tile::wait(&shared.tile_ring.empty[tile_at.stage], tile_at.parity ^ 1);
    if (lane == 0) {
      args.walk.describe(found.place, descriptor);
      descriptor.share = share;
      descriptor.no_more_tiles = false;
      tile::arrive(&shared.tile_ring.full[tile_at.stage]);
    }
    __syncwarp();
    tile_at.advance();
    shared.pieces.start(args.walk, descriptor, lane);
    __syncwarp();
    const int count = args.walk.template steps_of<T::kTeams>(share);
    for (int first = 0; first < count; first += kLanes) {
      planning::Piece piece;
      planning::PieceBoxes boxes;
      std::uint64_t kept = 0;
      shared.pieces.look_up(args.walk, descriptor, first + lane, piece, kept);
      if (piece.visited) {
        boxes =
            planning::PieceBoxes::of(args.walk, args.pages, descriptor, piece, args.box_rows, kept);
        kept &= boxes.present;
      }
      begin_batch();
      FoundPiece& to = shared.batches[batch_at.stage].pieces[lane];
      to.step.key = piece.key;
      to.step.bits = piece.bits;
      to.step.kept = kept;
      to.step.masked = piece.masked != 0 || kept != kAllKeys;
      to.step.visited = kept != 0;
      if constexpr (T::kNarrow) {
        if (piece.visited) find_factors(descriptor, piece, boxes, to.step);
      }
      to.row = boxes.row;
#pragma unroll
      for (int box = 0; box < planning::kMaxBoxes; ++box) to.batch[box] = boxes.batch[box];
      end_batch(min(count - first, kLanes), descriptor.kv_head);
    }
    __syncwarp();
  }

  using FoundPiece = typename T::FoundPiece;

  __device__ void begin_batch() {
    tile::wait(&shared.batch_ring.empty[batch_at.stage], batch_at.parity ^ 1);
  }
  __device__ void end_batch(int count, int kv_head) {
    __syncwarp();
    if (lane == 0) {
      auto& batch = shared.batches[batch_at.stage];
      batch.count = count;
      batch.kv_head = kv_head;
      tile::arrive(&shared.batch_ring.full[batch_at.stage]);
    }
    batch_at.advance();
  }

  /// The factors of a piece. Boxes share a row of factors, or are a page each.
  __device__ void find_factors(const TileDescriptor& descriptor, const planning::Piece& piece,
                               const planning::PieceBoxes& boxes, NarrowStep& to) const {
#pragma unroll
    for (int i = 0; i < NarrowStep::kCount; ++i) {
      const int key = i * NarrowStep::kKeys, box = key / args.box_rows;
      if (i > 0 && key % args.box_rows != 0) {  // in the same box, so in the same 64 rows
        to.k_factors[i] = to.k_factors[i - 1], to.v_factors[i] = to.v_factors[i - 1];
        continue;
      }
      int at = 0;
#pragma unroll
      for (int j = 0; j < planning::kMaxBoxes; ++j)
        if (j == box) at = boxes.batch[j];
      const int row = args.pages.table ? boxes.row : piece.key;
      if (!args.pages.table) at = descriptor.batch;
      const bool exists = at >= 0;
      to.k_factors[i] = exists ? args.k_factors.of(at, descriptor.kv_head, row) : 1.0f;
      // P of these keys is zero, and 0 is never the largest factor of a step.
      const float of_none = args.v_factors.data ? 0.0f : 1.0f;
      to.v_factors[i] = exists ? args.v_factors.of(at, descriptor.kv_head, row) : of_none;
    }
  }
};

/// Loads the pieces that the finder has looked up, in order.
template <class T>
struct Loader {
  const Arguments& args;
  typename T::Shared& shared;
  tile::RingCursor<T::kBatches> batch_at;
  tile::RingCursor<T::kStages> stage_at;

  __device__ void run() {
    // elect.sync once: with `lane == 0` the compiler puts a loop over lanes around TMA copies.
    const bool elected = tile::elect();
    while (true) {
      tile::wait(&shared.batch_ring.full[batch_at.stage], batch_at.parity);
      const auto& batch = shared.batches[batch_at.stage];
      const int count = batch.count;
      if (count == 0) return;
      for (int i = 0; i < count; ++i) {
        tile::wait(&shared.empty[stage_at.stage], stage_at.parity ^ 1);
        if (elected) load_piece(batch.pieces[i], batch.kv_head);
        __syncwarp();
        stage_at.advance();
      }
      if (elected) tile::arrive(&shared.batch_ring.empty[batch_at.stage]);
      batch_at.advance();
    }
  }

 private:
  /// Writes a step's descriptor and requests its keys and values. One lane calls it.
  __device__ void load_piece(const typename T::FoundPiece& piece, int kv_head) {
    const int stage = stage_at.stage;
    std::uint64_t *k_full = &shared.k_full[stage], *v_full = &shared.v_full[stage];
    shared.steps[stage] = piece.step;
    if (!piece.step.visited) {
      tile::arrive(k_full);
      tile::arrive(v_full);
      return;
    }
    tile::arrive_expecting(k_full, T::Keys::kBytes);
    load_rows(shared.keys[stage], args.k, piece, kv_head, k_full);
    tile::arrive_expecting(v_full, T::Values::kBytes);
    load_rows(shared.values[stage], args.v, piece, kv_head, v_full);
  }

  template <class Rows>
  __device__ void load_rows(Rows& to, const CUtensorMap& map, const typename T::FoundPiece& piece,
                            int kv_head, std::uint64_t* full) {
#pragma unroll
    for (int box = 0; box < planning::kMaxBoxes; ++box) {
      const int row = box * args.box_rows;
      if (row >= T::kKeys) break;
#pragma unroll
      for (int panel = 0; panel < Rows::kPanels; ++panel)
        tile::copy_box(tile::shared_address(to.panel(panel, row)), map, panel * Rows::kLine,
                       piece.row, kv_head, piece.batch[box], tile::shared_address(full),
                       args.policy);
    }
  }
};

}  // namespace tessera::cuda::sm90::decode
