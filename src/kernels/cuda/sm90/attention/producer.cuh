#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/sm90/attention/boxes.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/walk/turned_values.hpp"

// Two warps fill the rings: the producer warp issues the TMA loads of each step descriptor; the V
// post-process warp zeroes rows of V that no query sees. The kernel that computes dQ has the same
// warps: there Q comes with dO, and rows of K are zeroed (kAddsUpKeys).
namespace tessera::cuda::sm90::attention {

/// The producer. One lane runs it, chosen by elect.sync so that the compiler knows that only one
/// lane issues copies.
template <class T, class KernelArguments = Arguments>
class Producer {
 public:
  __device__ Producer(const KernelArguments& args, typename T::Shared& shared)
      : args_(args), shared_(shared) {}

  __device__ void run() {
    wait_for_grids_before();
    while (true) {
      const unsigned place = tile_ % T::kTileDescriptors;
      tile::wait(&shared_.tile_ring.full[place], tile_ / T::kTileDescriptors % 2);
      const TileDescriptor& descriptor = shared_.tiles[place];
      if (T::kQueryStages > 1 && q_tiles_ == tile_) request_q(descriptor);
      ++tile_;
      if (!descriptor.no_more_tiles) walk(descriptor);
      if (T::kQueryStages == 1 && q_tiles_ < tile_) request_q(descriptor);
      if (descriptor.no_more_tiles) break;
      tile::arrive(&shared_.tile_ring.empty[(tile_ - 1) % T::kTileDescriptors]);
    }
    finish();
  }

 private:
  using Step = typename T::Step;

  /// Until this returns, only the scheduler may have read global memory.
  __device__ void wait_for_grids_before() {
    if (!T::kWaitsForGrids) return;
    if (args_.walk.order) {
      tile::wait(&shared_.tile_ring.full[0], 0);  // the scheduler saw that earlier grids are done
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_global);
    } else {
      wait_for_grid_before();
    }
  }

  /// Waits for a free Q buffer, then loads the tile's Q.
  __device__ void request_q(const TileDescriptor& descriptor) {
    const unsigned q = q_tiles_ % T::kQueryStages;
    tile::wait(&shared_.q_ring.empty[q], q_tiles_ / T::kQueryStages % 2 ^ 1);
    load_q(descriptor);
  }

  /// Loads a tile's Q into the next buffer. After the last tile it only arrives, so that consumers
  /// wake up and stop.
  __device__ void load_q(const TileDescriptor& descriptor) {
    const unsigned q = q_tiles_++ % T::kQueryStages;
    std::uint64_t* full = &shared_.q_ring.full[q];
    if (descriptor.no_more_tiles) {
      tile::arrive(full);
    } else {
      constexpr int kPanels = T::Queries::panels_of(T::kDim);
      tile::arrive_expecting(
          full, (kPanels + T::kGradientPanels) * args_.walk.rows() * T::Queries::kLineBytes);
      const auto load = [&](auto& rows, int p, const CUtensorMap& map) {
        load_evict_first(tile::shared_address(rows.panel(p)), map, p * T::Queries::kLine, 0,
                         descriptor.q_begin + descriptor.first_query, descriptor.head_group,
                         args_.walk.packed_q ? 0 : descriptor.batch, tile::shared_address(full));
      };
#pragma unroll
      for (int p = 0; p < kPanels; ++p) load(shared_.q[q], p, args_.q);
      if constexpr (T::kGradientPanels > 0) {
#pragma unroll
        for (int p = 0; p < T::kGradientPanels; ++p) load(shared_.gradients, p, args_.dout);
      }
    }
  }

  /// Requests the next tile's Q if its descriptor is published and a Q buffer is free; never waits.
  __device__ void look_ahead() {
    using tile::ptx::mbarrier_test_wait_parity;
    if (q_tiles_ > tile_) return;
    const unsigned place = tile_ % T::kTileDescriptors, q = q_tiles_ % T::kQueryStages;
    if (mbarrier_test_wait_parity(&shared_.tile_ring.full[place],
                                  tile_ / T::kTileDescriptors % 2) &&
        mbarrier_test_wait_parity(&shared_.q_ring.empty[q], q_tiles_ / T::kQueryStages % 2 ^ 1))
      load_q(shared_.tiles[place]);
  }

  /// Loads K and V alternately, step by step. Consumers rely on that order when they read a step's
  /// K again after releasing it (rescore): no later K overwrites its stage before the V of the
  /// previous step is released.
  __device__ void walk(const TileDescriptor& descriptor) {
    // With one Q buffer, the first K loads are issued before the wait for the previous tile's Q to
    // be read.
    int free = T::kKeysBeforeQueries - 1;
    for (bool last = false; !last;) {
      const unsigned place = step_ % T::kStepDescriptors;
      tile::wait(&shared_.step_ring.full[place], step_ / T::kStepDescriptors % 2);
      const Step& step = shared_.steps[place];
      last = step.flags[0].last_of_tile && step_ % T::kKvSplits == T::kKvSplits - 1;

      tile::wait(&shared_.k_ring.empty[at_.stage], at_.parity ^ 1);
      shared_.stage_steps[at_.stage] = step;
      std::uint64_t* k_full = &shared_.k_ring.full[at_.stage];
      if constexpr (T::kAddsUpKeys) k_full = post_processed(k_full, place, at_.stage);
      tile::arrive_expecting(k_full, T::Keys::kBytes);
      const auto keys = [&](int panel, int row) {
        return shared_.keys[at_.stage].panel(panel, row);
      };
      if (interleaves_keys())
        copy_interleaved(shared_.keys[at_.stage], shared_.places[place], descriptor.kv_head,
                         k_full);
      else
        copy<typename T::Keys>(keys, args_.k, shared_.places[place], descriptor.kv_head, k_full);
      if (T::kQueryStages == 1 && free-- == 0) request_q(descriptor);

      auto& v_at = value_place();
      tile::wait(&shared_.v_ring.empty[v_at.stage], v_at.parity ^ 1);
      if (lands_values()) {
        land(shared_.places[place], shared_.kept[place], descriptor.kv_head, v_at.stage);
      } else {
        std::uint64_t* full = &shared_.v_ring.full[v_at.stage];
        if constexpr (!T::kAddsUpKeys) full = post_processed(full, place, v_at.stage);
        tile::arrive_expecting(full, T::Values::kBytes);
        if constexpr (T::kNarrow) {
          copy_by_keys(shared_.values[v_at.stage], shared_.places[place], descriptor.kv_head, full);
        } else {
          const auto values = [&](int panel, int row) {
            return shared_.values[v_at.stage].panel(panel, row);
          };
          copy<typename T::Values>(values, args_.v, shared_.places[place], descriptor.kv_head,
                                   full);
        }
      }
      tile::arrive(&shared_.step_ring.empty[place]);
      ++step_;
      at_.advance();
      if constexpr (T::kValueStages != T::kStages) v_at.advance();
      if constexpr (T::kQueryStages > 1) look_ahead();
    }
  }

  /// Loads the K or V of a step: one box per piece and panel.
  template <class Rows>
  __device__ void copy(const auto& to, const CUtensorMap& from,
                       const planning::KeyPlace (&places)[T::kPieces], int head,
                       std::uint64_t* full) {
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
#pragma unroll
      for (int p = 0; p < Rows::kPanels; ++p)
        load_evict_last(tile::shared_address(to(p, piece * planning::kKeyPiece)), from,
                        p * Rows::kLine, places[piece].row, head, places[piece].batch,
                        tile::shared_address(full));
  }

  /// Whether V lies by keys, so that rows of K are interleaved in shared memory.
  __device__ bool interleaves_keys() const {
    if constexpr (T::kNarrow) return args_.v_by_keys;
    return false;
  }

  /// Whether V has to be transposed.
  __device__ bool lands_values() const { return T::kNarrow && !interleaves_keys(); }

  /// Loads the K of a step with its rows in the order that V's keys need (`turned_key`): two boxes
  /// per piece and panel, of every second pair of rows. TMA does not see that such a box reaches
  /// past the end of the tensor, so a piece that does is loaded by single pairs.
  __device__ void copy_interleaved(typename T::Keys& to,
                                   const planning::KeyPlace (&places)[T::kPieces], int head,
                                   std::uint64_t* full) {
    using planning::kKeyPiece;
    if constexpr (T::kNarrow) {
      const int rows = args_.k_rows;
      const auto address = [&](int panel, int row) {
        return tile::shared_address(to.panel(panel, row));
      };
#pragma unroll
      for (int piece = 0; piece < T::kPieces; ++piece) {
        const auto [row, batch] = places[piece];
        const bool ends = row < rows && row + kKeyPiece > rows;
#pragma unroll 1
        for (int p = 0; p < T::Keys::kPanels; ++p) {
          const int column = p * T::Keys::kLine;
          if (ends) {
#pragma unroll 1
            for (int i = 0; i < kKeyPiece; i += 2)
              load_evict_last(address(p, piece * kKeyPiece + planning::turned_key(i)),
                              args_.k_pairs, column, row + i, head, batch,
                              tile::shared_address(full));
          } else {
#pragma unroll
            for (int half = 0; half < 2; ++half)
              load_pairs_evict_last(address(p, piece * kKeyPiece + half * kKeyPiece / 2), args_.k,
                                    column, row + half * 2, head, batch,
                                    tile::shared_address(full));
          }
        }
      }
    }
  }

  /// Loads the V of a step that lies by keys: one box per piece.
  __device__ void copy_by_keys(typename T::Values& to,
                               const planning::KeyPlace (&places)[T::kPieces], int head,
                               std::uint64_t* full) {
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
      load_evict_last(tile::shared_address(to.panel(piece)), args_.v, places[piece].row, 0, head,
                      places[piece].batch, tile::shared_address(full));
  }

  /// Loads the V of a step for the warps that transpose it into stage `stage`, piece by piece.
  __device__ void land(const planning::KeyPlace (&places)[T::kPieces],
                       const std::uint64_t (&kept)[T::kPieces], int head, int stage) {
    if constexpr (T::kNarrow) {
      using Rows = typename T::LandingRows;
#pragma unroll 1
      for (int piece = 0; piece < T::kPieces; ++piece) {
        next_landing() = {stage, piece, kept[piece]};
        std::uint64_t* const full = &shared_.landing.ring.full[landing_at_.stage];
        tile::arrive_expecting(full, Rows::kBytes);
#pragma unroll
        for (int p = 0; p < Rows::kPanels; ++p)
          load_evict_last(tile::shared_address(shared_.landing.rows[landing_at_.stage].panel(p)),
                          args_.v, p * Rows::kLine, places[piece].row, head, places[piece].batch,
                          tile::shared_address(full));
        landing_at_.advance();
      }
    }
  }

  __device__ auto& next_landing() {
    const auto [place, parity] = landing_at_;
    tile::wait(&shared_.landing.ring.empty[place], parity ^ 1);
    return shared_.landing.pieces[place];
  }

  /// Whether some key of the step is seen by no query of the tile.
  __device__ static bool is_ragged(const std::uint64_t (&kept)[T::kPieces]) {
    std::uint64_t all = kAllKeys;
#pragma unroll
    for (const std::uint64_t keys : kept) all &= keys;
    return all != kAllKeys;
  }

  /// The barrier on which the rows of stage `stage` complete, which are those of step descriptor
  /// `place`: `full` or, if some must be zeroed, one of the V post-process warp, which arrives
  /// there.
  __device__ std::uint64_t* post_processed(std::uint64_t* full, unsigned place, int stage) {
    if (!is_ragged(shared_.kept[place])) return full;
    request_v_post_process(shared_.kept[place], stage);
    return &shared_.v_landed[stage];
  }

  /// Hands a stage to the V post-process warp.
  __device__ void request_v_post_process(const std::uint64_t (&kept)[T::kPieces], int stage) {
    auto& descriptor = next_v_post_descriptor();
    descriptor.stage = stage;
#pragma unroll
    for (int p = 0; p < T::kPieces; ++p) descriptor.kept[p] = kept[p];
    tile::arrive(&shared_.v_post_ring.full[v_posts_++ % T::kVPostDescriptors]);
  }

  __device__ typename T::VPostDescriptor& next_v_post_descriptor() {
    const unsigned place = v_posts_ % T::kVPostDescriptors;
    tile::wait(&shared_.v_post_ring.empty[place], v_posts_ / T::kVPostDescriptors % 2 ^ 1);
    return shared_.v_post_descriptors[place];
  }

  __device__ void finish() {
    if constexpr (T::kNarrow) {
      if (!args_.v_by_keys) {
        next_landing().stage = -1;
        return tile::arrive(&shared_.landing.ring.full[landing_at_.stage]);
      }
    }
    next_v_post_descriptor().stage = -1;
    tile::arrive(&shared_.v_post_ring.full[v_posts_ % T::kVPostDescriptors]);
  }

  /// The next stage of V: K's, if there are as many.
  __device__ auto& value_place() {
    if constexpr (T::kValueStages == T::kStages)
      return at_;
    else
      return v_at_;
  }

  const KernelArguments& args_;
  typename T::Shared& shared_;
  tile::RingCursor<T::kStages> at_;
  tile::RingCursor<T::kValueStages> v_at_;
  // Counters. `q_tiles_`: tiles whose Q has been requested.
  unsigned tile_ = 0, q_tiles_ = 0, step_ = 0, v_posts_ = 0;
  tile::RingCursor<std::max(T::kLandingPieces, 1)> landing_at_;  // of FP8
};

/// Zeroes the rows of keys that are not `kept`, of the piece that begins in row `first`.
template <class Rows>
__device__ __forceinline__ void clear_rows(Rows& rows, int first, std::uint64_t kept, int lane) {
  constexpr int kLanes = Rows::kLineBytes / 16;  // 16-byte chunks per line
#pragma unroll 1
  for (int row = lane / kLanes; row < planning::kKeyPiece; row += 32 / kLanes) {
    if ((kept >> row & 1) != 0) continue;
#pragma unroll
    for (int p = 0; p < Rows::kPanels; ++p)
      reinterpret_cast<uint4*>(rows.panel(p, first + row))[lane % kLanes] = uint4{};
  }
}

/// The same where V's rows are columns, as it lies by keys. A lane has four keys of every second
/// row.
template <class T>
__device__ __forceinline__ void clear_keys(typename T::Values& values, int first,
                                           std::uint64_t kept, int lane) {
  constexpr int kChunk = 16, kWords = planning::kKeyPiece / 4;
  const int of_lane = lane % kWords * 4;  // of the piece
  std::uint32_t mask = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (kept >> (of_lane + i) & 1) mask |= 0xFFu << i * 8;
#pragma unroll 1
  for (int row = lane / kWords; row < T::kDimV; row += 32 / kWords) {
    auto* const chunk = reinterpret_cast<std::uint32_t*>(values.chunk(row, first + of_lane));
    chunk[of_lane % kChunk / 4] &= mask;
  }
}

/// The V post-process warp. V rows that no query of the tile sees may hold NaN, and P = 0 does not
/// hide them (0 * NaN is NaN), so this warp zeroes them before it hands the stage to the consumers.
/// Where a product adds up rows of K, it does so with K.
template <class T>
__device__ __forceinline__ void post_process_v(typename T::Shared& shared, int lane) {
  tile::RingCursor<T::kVPostDescriptors> at;
  std::uint32_t parities = 0;  // parity of v_landed, one bit per stage
  while (true) {
    tile::wait(&shared.v_post_ring.full[at.stage], at.parity);
    const typename T::VPostDescriptor& descriptor = shared.v_post_descriptors[at.stage];
    const int stage = descriptor.stage;
    if (stage < 0) return;
    tile::wait(&shared.v_landed[stage], parities >> stage & 1);
    parities ^= 1u << stage;
#pragma unroll 1
    for (int piece = 0; piece < T::kPieces; ++piece) {
      const int first = piece * planning::kKeyPiece;
      const std::uint64_t kept = descriptor.kept[piece];
      if constexpr (T::kNarrow)
        clear_keys<T>(shared.values[stage], first, kept, lane);
      else if constexpr (T::kAddsUpKeys)
        clear_rows(shared.keys[stage], first, kept, lane);
      else
        clear_rows(shared.values[stage], first, kept, lane);
    }
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    arrive_as_warp(shared.v_post_ring.empty[at.stage], lane);
    if (lane == 0)
      tile::arrive(T::kAddsUpKeys ? &shared.k_ring.full[stage] : &shared.v_ring.full[stage]);
    at.advance();
  }
}

}  // namespace tessera::cuda::sm90::attention
