#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm80/attention/copy.cuh"
#include "src/kernels/cuda/sm80/attention/schedule.cuh"
#include "src/kernels/cuda/sm80/attention/shape.cuh"
#include "src/kernels/cuda/sm80/attention/warp.cuh"

// The kernel: all warps copy K and V of the next step and multiply those of this one.
namespace tessera::cuda::sm80::attention {

template <class T>
struct Shared {
  struct Stage {
    alignas(128) unsigned char keys[T::Keys::kBytes];
    alignas(128) unsigned char values[T::Values::kBytes];
  };
  alignas(128) unsigned char queries[T::Queries::kBytes];
  Stage stages[T::kStages];
  KeyRange seen[T::kWarps];  // the keys that some row of each warp sees, of the current tile
  Schedule<T> schedule;
};

template <class T>
class ThreadBlock {
 public:
  __device__ __forceinline__ ThreadBlock(const Arguments& args, Shared<T>& shared)
      : args_(args), shared_(shared), rows_(args, shared.seen) {}

  __device__ __forceinline__ void run() {
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    Schedule<T>& schedule = shared_.schedule;
    if (warp == 0) {
      schedule.start(lane);
      schedule.fill(args_, 0, 0, lane);
    } else if (warp == T::kWarps - 1 && args_.walk.packed_q) {
      clear_rest(args_.result, args_.walk, lane);
    }
    __syncthreads();
    if (schedule.mark(0).kind == Mark::end) return;
    copy_queries<T>(queries(), args_, schedule.tile(0));
    copy_keys(0, 0);
    if constexpr (T::kStages > 1) copy_values(0, 0);
    unsigned tile = 0;
    bool q_copied = true;        // the Q of the next tile to begin
    unsigned steps_of_tile = 0;  // so far
    for (unsigned step = 0;; ++step) {
      wait_for_copies();
      __syncthreads();  // this step's K has arrived; all warps have left the step before
      if (schedule.mark(step).kind == Mark::begins_tile) {
        if (step > 0) ++tile;
        if (!q_copied) {
          copy_queries<T>(queries(), args_, schedule.tile(tile));
          wait_for_copies();
          __syncthreads();
        }
        rows_.begin(schedule.tile(tile), queries());
        steps_of_tile = 0;
      }
      if constexpr (T::kStages == 1) copy_values(step, tile);
      if (kind_of_next(step) == Mark::begins_tile) {
        // All warps hold Q in registers once they have left the tile's first step.
        q_copied = T::kQInRegisters && steps_of_tile > 0;
        if (q_copied) copy_queries<T>(queries(), args_, schedule.tile(tile + 1));
      }
      ++steps_of_tile;
      if (warp == 0) schedule.fill(args_, step, tile, lane);
      compute(step, tile);
      if (kind_of_next(step) == Mark::inside) continue;
      rows_.finish(schedule.tile(tile));
      if (kind_of_next(step) == Mark::end) return;
    }
  }

 private:
  // Read anew at each use, so that no register holds it.
  __device__ __forceinline__ Mark::Kind kind_of_next(unsigned step) const {
    return shared_.schedule.mark(step + 1).kind;
  }

  __device__ __forceinline__ void compute(unsigned step, unsigned tile) {
    const typename T::Step& descriptor = shared_.schedule.step(step);
    const bool needed = rows_.needs(descriptor.key[0]);
    const bool copied = T::kStages > 1 && (T::kCopiesFirst || !needed);
    if (copied) copy_next(step, tile);
    if (needed) {
      rows_.multiply_qk(queries(), keys(step));
      // While the tensor cores compute scores, which hides the latency of the addresses.
      if (T::kStages > 1 && !copied) copy_next(step, tile);
      rows_.compute_p(descriptor, shared_.schedule.tile(tile), shared_.schedule.kept(step));
    }
    if constexpr (T::kStages == 1) {
      wait_for_copies();
      __syncthreads();  // V has arrived; no warp reads K any more
      copy_next(step, tile);
    }
    if (needed) rows_.multiply_pv(values(step));
  }

  /// Starts the copies of the step after `step`, if there is one: with one stage, of its keys.
  __device__ __forceinline__ void copy_next(unsigned step, unsigned tile) {
    const Mark::Kind next = kind_of_next(step);
    if (next == Mark::end) return;
    if (next == Mark::begins_tile) ++tile;
    copy_keys(step + 1, tile);
    if constexpr (T::kStages > 1) copy_values(step + 1, tile);
  }
  __device__ __forceinline__ void copy_keys(unsigned step, unsigned tile) {
    copy<typename T::Keys>(keys(step), args_.k, shared_.schedule.places(step).k, step, tile);
  }
  __device__ __forceinline__ void copy_values(unsigned step, unsigned tile) {
    copy<typename T::Values>(values(step), args_.v, shared_.schedule.places(step).v, step, tile);
  }
  template <class Rows>
  __device__ __forceinline__ void copy(std::uint32_t to, const Source& from, std::int64_t of_piece,
                                       unsigned step, unsigned tile) {
    const Schedule<T>& schedule = shared_.schedule;
    if (schedule.mark(step).whole) return copy_whole_piece<T, Rows>(to, from, of_piece);
    if constexpr (T::kReadsPages)
      if (args_.pages.table)
        return copy_paged_piece<T, Rows>(to, from, schedule.tile(tile), schedule.paged_keys(step),
                                         args_.rows_of_piece, schedule.kept(step));
    copy_piece<T, Rows>(to, from, of_piece, schedule.kept(step));
  }

  __device__ __forceinline__ std::uint32_t queries() const {
    return shared_address(shared_.queries);
  }
  __device__ __forceinline__ std::uint32_t keys(unsigned step) const {
    return shared_address(shared_.stages[0].keys) +
           step % T::kStages * static_cast<unsigned>(sizeof(typename Shared<T>::Stage));
  }
  __device__ __forceinline__ std::uint32_t values(unsigned step) const {
    return keys(step) + T::Keys::kBytes;
  }

  const Arguments& args_;
  Shared<T>& shared_;
  WarpRows<T> rows_;
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kCtasPerSm)
    attention_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) unsigned char raw[];
  // What only pages need is at the end.
  static_assert(sizeof(Shared<T>) <= planning::attention_shared_bytes(T::kOfRow, T::kReadsPages));
  ThreadBlock<T>(args, *reinterpret_cast<Shared<T>*>(raw)).run();
}

}  // namespace tessera::cuda::sm80::attention
