#pragma once

#include "src/kernels/cuda/sm90/matmul/descriptors.cuh"
#include "src/kernels/cuda/sm90/matmul/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"

// A warp that loads the factors of FP8 operands.
namespace tessera::cuda::sm90::matmul {

/// Follows the stages like a consumer: loads a step's factors into registers as soon as the stage
/// is full, and hands them over when the consumers have read those of the step before. So the
/// latency of one step's loads passes while the consumers multiply earlier steps.
template <class T>
class FactorLoader {
 public:
  __device__ FactorLoader(const Arguments& args, typename T::Shared& shared, int lane)
      : args_(args), shared_(shared), lane_(lane) {}

  __device__ void run() {
    Loaded now, next;
    while (true) {
      while (!now.some && !ended_) take(now);
      if (!now.some) return;
      // Loads of the next step are begun before those of this one are waited for.
      while (!next.some && !ended_ && is_full()) take(next);
      hand_over(now);
      now = next;
      next.some = false;
    }
  }

 private:
  static constexpr int kLines = T::kLines, kRights = T::kShape.n / 32;

  /// The factors of a step: one line's in each of the first lanes, columns lane + 32 * i.
  struct Loaded {
    bool some = false;
    float left = 1.0f, right[kRights];
  };

  __device__ bool is_full() const {
    return __all_sync(
        kAllLanes, tile::ptx::mbarrier_test_wait_parity(&shared_.ring.full[at_.stage], at_.parity));
  }

  /// Loads the factors of the next stage, if it has any, and releases it.
  __device__ void take(Loaded& to) {
    tile::wait(&shared_.ring.full[at_.stage], at_.parity);
    const auto& step = shared_.stage_descriptors[at_.stage];
    const Task task = step.read_task();
    ended_ = task.use == StageUse::end;
    if (ended_) return;
    if (task.use == StageUse::multiply) {
      to.some = true;
      const Place place = step.place;
      if (args_.left.by_step() && lane_ < kLines)
        to.left = args_.left.of(place.batch, place.row + lane_ * tile::kLine, step.depth,
                                step.matrix[lane_]);
      if (args_.right.by_step()) {
#pragma unroll
        for (int i = 0; i < kRights; ++i)
          to.right[i] = args_.right.of(place.batch, place.col + lane_ + i * 32, step.depth, 0);
      }
    }
    __syncwarp();
    if (lane_ == 0) tile::arrive(&shared_.ring.empty[at_.stage]);
    at_.advance();
  }

  __device__ void hand_over(const Loaded& from) {
    auto& to = shared_.factors;
    tile::wait(&to.ring.empty[0], steps_ % 2 ^ 1);
    if (lane_ < kLines) to.left[lane_] = from.left;
    if (args_.right.by_step()) {
#pragma unroll
      for (int i = 0; i < kRights; ++i) to.right[lane_ + i * 32] = from.right[i];
    }
    __syncwarp();
    if (lane_ == 0) tile::arrive(&to.ring.full[0]);
    ++steps_;
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int lane_;
  bool ended_ = false;
  unsigned steps_ = 0;  // handed over
  tile::RingCursor<T::kStages> at_;
};

}  // namespace tessera::cuda::sm90::matmul
