#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm80/attention_backward/gradients.cuh"
#include "src/kernels/cuda/sm80/attention_backward/scores.cuh"
#include "src/kernels/cuda/sm80/attention_backward/shape.cuh"
#include "src/kernels/cuda/sm80/attention_backward/steps.cuh"

// The kernel: one thread block per key tile, or part of one, and KV head. All warps copy Q and dO
// of the next step and multiply those of this one.
namespace tessera::cuda::sm80::attention_backward {

template <class T>
class ThreadBlock {
 public:
  using Shared = typename T::Shared;

  __device__ __forceinline__ ThreadBlock(const Arguments& args, Shared& shared)
      : args_(args), shared_(shared), gradients_(args, shared) {}

  __device__ __forceinline__ void run() {
    if (in_first_warp()) Steps<T>(args_, shared_).take(args_.scratch.ticket);
    __syncthreads();
    if (shared_.taken.num_steps < 0) return;
    if (shared_.taken.num_steps > 0) walk();
    gradients_.store();
  }

 private:
  __device__ __forceinline__ void walk() {
    if (in_first_warp()) Steps<T>(args_, shared_).start();
    copy_keys<T, typename T::Keys>(attention::shared_address(shared_.keys), args_.k, shared_);
    copy_keys<T, typename T::Values>(attention::shared_address(shared_.values), args_.v, shared_);
    __syncthreads();  // steps have been described
    copy_step<T>(args_, shared_, 0);
    WarpScores<T> scores(args_, shared_);
#pragma unroll 1
    for (int step = 0; step < shared_.taken.num_steps; ++step) {
      const int stage = step % T::kStages;
      attention::wait_for_copies();
      __syncthreads();  // Q and dO have arrived; all warps have left the step before
      if (T::kHoldsValues && step == 0) scores.begin();
      std::int32_t reached = 0;
      if (watches_turns() && turn_of(step) > 0) reached = load_relaxed(counter_of(step));
      scores.compute(descriptor_of(step), stage, [&] {
        if (watches_turns()) pass_turn(step, reached);
        if (T::kStages > 1 && step + 1 < shared_.taken.num_steps)
          copy_step<T>(args_, shared_, step + 1);
        if (in_first_warp()) Steps<T>(args_, shared_).fill(step);
      });
      __syncthreads();  // P and dS have been written
      gradients_.add(stage);
      if (T::kStages == 1 && step + 1 < shared_.taken.num_steps) {
        __syncthreads();  // no warp reads Q and dO any more
        copy_step<T>(args_, shared_, step + 1);
      }
      add_dq(step);
    }
    __syncthreads();
    if (watches_turns()) {
      fence_of_gpu();
      raise_relaxed(counter_of(shared_.taken.num_steps - 1), number_of_keys() + 1);
    }
  }

  /// One thread raises the turn of the step before, whose sums have been added by all warps, and
  /// sees whether that of this step has come. One fence serves both.
  __device__ __forceinline__ void pass_turn(int step, std::int32_t reached) {
    fence_of_gpu();
    if (step > 0) raise_relaxed(counter_of(step - 1), number_of_keys() + 1);
    shared_.turn_has_come = reached >= turn_of(step);
  }

  __device__ __forceinline__ void add_dq(int step) {
    WarpDq<T> dq;
    dq.compute(shared_);
    const std::int32_t turn = turn_of(step);
    if (in_order() && agreed(!shared_.turn_has_come)) {
      // Key tiles before this one were handed out before it, so they are running or done.
      while (load_acquired(counter_of(step)) < turn) {
      }
    }
    dq.add_to(args_.scratch.dq + block_of(step) * (T::kM * T::kDim), in_order() && turn == 0);
  }

  __device__ __forceinline__ const BackwardStep& descriptor_of(int step) const {
    return shared_.steps[step % planning::kBackwardSteps];
  }
  /// The number of a step's block of queries, of all sums of all heads.
  __device__ __forceinline__ std::int64_t block_of(int step) const {
    const BackwardStep& descriptor = descriptor_of(step);
    const KeyTileJob& job = shared_.taken.job;
    return std::int64_t{sums_of(args_.walk, job, descriptor)} * args_.walk.query_blocks +
           job.query_slot + descriptor.block;
  }
  __device__ __forceinline__ std::int32_t* counter_of(int step) const {
    return args_.scratch.turns + block_of(step);
  }
  /// The sums of a block are added in the order of key tiles and, within a tile, of its parts.
  __device__ __forceinline__ int number_of_keys() const {
    return shared_.taken.job.rank * T::kKeyParts + shared_.taken.key_part;
  }
  /// What the counter of a step's block has to reach before this thread block adds. All parts of a
  /// tile visit the same blocks of queries. 0: nothing has been added.
  __device__ __forceinline__ std::int32_t turn_of(int step) const {
    if (!in_order()) return 0;
    if (T::kKeyParts > 1 && shared_.taken.key_part > 0) return number_of_keys();
    return descriptor_of(step).turn * T::kKeyParts;
  }

  __device__ __forceinline__ static bool in_first_warp() { return thread_of_block() < kLanes; }
  /// A thread of the last warp: the first one has the walk.
  __device__ __forceinline__ bool watches_turns() const {
    return in_order() && thread_of_block() == T::kThreads - kLanes;
  }
  /// Whether sums of dQ are added in the order of key tiles.
  __device__ __forceinline__ bool in_order() const { return args_.scratch.turns != nullptr; }

  const Arguments& args_;
  Shared& shared_;
  WarpGradients<T> gradients_;
};

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kCtasPerSm)
    attention_backward_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) unsigned char raw[];
  ThreadBlock<T>(args, *reinterpret_cast<typename T::Shared*>(raw)).run();
}

}  // namespace tessera::cuda::sm80::attention_backward
