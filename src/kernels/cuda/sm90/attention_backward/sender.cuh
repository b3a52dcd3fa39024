#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/turns.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"

// The sender warps add the consumers' dQ to the sums in global memory, in the order of key tiles.
namespace tessera::cuda::sm90::attention_backward {

/// Stores to global memory, or adds to it; the copy is part of the current bulk group.
__device__ __forceinline__ void store_bytes(float* to, const float* from, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(tile::shared_address(from)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void add_bytes(float* to, const float* from, std::uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(tile::shared_address(from)), "r"(bytes)
      : "memory");
}

/// One lane of a sender warp sends every kSenders-th part of dQ of a tile's steps. `number`: of its
/// next part, counted through all tiles.
template <class T>
__device__ void send_dq_of_tile(const Arguments& args, typename T::Shared& shared,
                                const TileDescriptor& tile_of, unsigned& number) {
  // The sums of a block are added in the order of key tiles and, within a tile, of its halves.
  const int key_part = tile_of.key_part;
  const int number_of_keys = tile_of.job.tile * T::kKeyParts + key_part;
  for (; number < tile_of.end_step * T::kParts; number += T::kSenders) {
    const unsigned step = number / T::kParts, part = number % T::kParts;
    const unsigned buffer = number % T::kDqBuffers, use = number / T::kDqBuffers;
    const unsigned place = step % T::kStepDescriptors;
    tile::wait(&shared.step_ring.full[place], step / T::kStepDescriptors % 2);
    const BackwardStep& descriptor = shared.steps[place];
    // Both halves of a tile visit the same blocks of queries.
    const std::int32_t first_turn = key_part > 0 ? number_of_keys : descriptor.turn * T::kKeyParts;
    const std::int64_t block =
        descriptor.head * args.walk.query_blocks + tile_of.job.query_slot + descriptor.block;
    std::int32_t* const turn = args.scratch.turns + block * T::kParts + part;
    float* const to = args.scratch.dq + block * (T::kM * T::kDim) + part * (T::kM * T::kPart);
    const std::uint32_t bytes = T::kM * T::columns_of(static_cast<int>(part)) * sizeof(float);
    if (first_turn > 0) {
      // Usually the turn came long before the sums are complete. Key tiles before this one were
      // handed out before it, so they are running or done.
      while (load_acquired(turn) < first_turn) {
      }
      // Orders the bulk copy after the turn. A fence of all memory would cost 7%.
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_global);
    }
    // Each warp has barriers of its own, so that it does not miss a phase.
    tile::wait(&shared.dq_full[buffer][use % T::kSenders], use / T::kSenders % 2);
    tile::arrive(&shared.step_ring.empty[place]);  // the consumers have finished with it as well
    if (first_turn > 0)
      add_bytes(to, shared.dq[buffer], bytes);
    else
      store_bytes(to, shared.dq[buffer], bytes);  // so the sums need not be cleared
    tile::commit_stores();
    ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>());
    tile::arrive(&shared.dq_empty[buffer]);
    ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<0>());
    raise_released(turn, number_of_keys + 1);
  }
}

/// One lane of sender warp `sender` sends its share of dQ, tile after tile.
template <class T>
__device__ void send_dq(const Arguments& args, typename T::Shared& shared, unsigned sender) {
  tile::RingCursor<T::kTiles> at;
  unsigned number = sender;
  while (true) {
    tile::wait(&shared.tile_ring.full[at.stage], at.parity);
    const TileDescriptor& taken = shared.tiles[at.stage];
    if (taken.num_steps < 0) return;
    send_dq_of_tile<T>(args, shared, taken, number);
    tile::arrive(&shared.tile_ring.empty[at.stage]);
    at.advance();
  }
}

}  // namespace tessera::cuda::sm90::attention_backward
