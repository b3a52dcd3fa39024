#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention_backward/turns.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"

// The sender warps add the consumers' dQ to the sums in global memory, in the order of key tiles or
// in any order.
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

/// One lane of a sender warp, which sends every kSenders-th part of dQ, tile after tile.
template <class T>
class Sender {
 public:
  using Shared = typename T::Shared;

  __device__ Sender(const Arguments& args, Shared& shared, unsigned number)
      : args_(args), shared_(shared), number_(number) {}

  __device__ void run() {
    tile::RingCursor<T::kTiles> at;
    while (true) {
      tile::wait(&shared_.tile_ring.full[at.stage], at.parity);
      const TileDescriptor& taken = shared_.tiles[at.stage];
      if (taken.num_steps < 0)
        return ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<0>());
      for (; number_ < taken.end_step * T::kParts; number_ += T::kSenders) send(taken);
      pass_turn();
      tile::arrive(&shared_.tile_ring.empty[at.stage]);
      at.advance();
    }
  }

 private:
  __device__ void send(const TileDescriptor& taken) {
    const unsigned step = number_ / T::kParts, part = number_ % T::kParts;
    const unsigned buffer = number_ % T::kDqBuffers, use = number_ / T::kDqBuffers;
    const unsigned place = step % T::kStepDescriptors;
    tile::wait(&shared_.step_ring.full[place], step / T::kStepDescriptors % 2);
    const BackwardStep& descriptor = shared_.steps[place][T::block_of(static_cast<int>(part))];
    const int columns = T::columns_at(static_cast<int>(part));
    const bool in_order = args_.scratch.turns != nullptr;
    const std::int32_t first_turn = descriptor.turn;
    const std::int64_t block =
        sums_of(args_.walk, taken.job, descriptor) * std::int64_t{args_.walk.query_blocks} +
        taken.job.query_slot + descriptor.block;
    std::int32_t* const turn = args_.scratch.turns + block * T::kColumnParts + columns;
    float* const to =
        args_.scratch.dq + block * (T::kBlock * T::kDim) + columns * (T::kBlock * T::kPart);
    const std::uint32_t bytes = T::kBlock * T::columns_of(columns) * sizeof(float);
    const bool absent = T::kBlocks > 1 && descriptor.turn == BackwardStep::kAbsent;
    // Usually the turn came long before the sums are complete. Key tiles before this one were
    // handed out before it, so they are running or done.
    const bool waits = in_order && first_turn > 0;
    bool has_come = !waits || load_acquired(turn) >= first_turn;
    pass_turn();
    while (!has_come) has_come = load_acquired(turn) >= first_turn;
    // Orders the bulk copy after the turn. A fence of all memory would cost 7%.
    if (waits) ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_global);
    // Each warp has barriers of its own, so that it does not miss a phase.
    tile::wait(&shared_.dq_full[buffer][use % T::kSenders], use / T::kSenders % 2);
    tile::arrive(&shared_.step_ring.empty[place]);  // the consumers have finished with it as well
    if (absent) return tile::arrive(&shared_.dq_empty[buffer]);
    if (first_turn > 0 || !in_order)
      add_bytes(to, shared_.dq[buffer], bytes);
    else
      store_bytes(to, shared_.dq[buffer], bytes);  // so the sums need not be cleared
    tile::commit_stores();
    ::cuda::ptx::cp_async_bulk_wait_group_read(::cuda::ptx::n32_t<0>());
    tile::arrive(&shared_.dq_empty[buffer]);
    if (in_order) passed_ = turn;
    next_turn_ = taken.job.rank + 1;
  }

  /// Passes the turn of the part that has been sent, once it has arrived in global memory: after
  /// the look at the next part's turn, which takes as long.
  __device__ void pass_turn() {
    if (!passed_) return;
    ::cuda::ptx::cp_async_bulk_wait_group(::cuda::ptx::n32_t<0>());
    raise_released(passed_, next_turn_);
    passed_ = nullptr;
  }

  const Arguments& args_;
  Shared& shared_;
  unsigned number_;  // of the next part, counted through all tiles
  std::int32_t* passed_ = nullptr;
  std::int32_t next_turn_ = 0;
};

}  // namespace tessera::cuda::sm90::attention_backward
