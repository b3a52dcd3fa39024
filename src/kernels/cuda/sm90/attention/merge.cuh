#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/common/launch_count.cuh"
#include "src/kernels/cuda/sm90/attention/consumer_pipeline.cuh"

// Merging the partial results of a tile whose keys were split: by KV splits inside the CTA, or
// across CTAs.
namespace tessera::cuda::sm90::attention {

/// Called by consumers of the second and later KV splits: hands the partial result to the consumer
/// of the first split that has the same rows.
template <class T>
__device__ __forceinline__ void send_partial(ConsumerPipeline<T>& pipe,
                                             const OAccumulator<T::kDimV>& o_acc,
                                             const Softmax& softmax) {
  const int place = pipe.consumer - T::kSplitConsumers;
  tile::wait(&pipe.shared.split_exchange.empty[place], pipe.tile % 2 ^ 1);
  store_partial<T::kDimV>(pipe.shared.split_exchange.partials[place], o_acc, softmax,
                          pipe.thread());
  pipe.release(pipe.shared.split_exchange.full[place]);
}

/// Called by consumers of the first KV split: adds the partial results of the other splits.
template <class T>
__device__ __forceinline__ void merge_splits(ConsumerPipeline<T>& pipe,
                                             OAccumulator<T::kDimV>& o_acc, Softmax& softmax) {
#pragma unroll
  for (int place = pipe.consumer; place < T::kSplitPartials; place += T::kSplitConsumers) {
    tile::wait(&pipe.shared.split_exchange.full[place], pipe.tile % 2);
    add_partial<true, T::kDimV>(pipe.shared.split_exchange.partials[place], o_acc, softmax,
                                pipe.thread());
    pipe.release(pipe.shared.split_exchange.empty[place]);
  }
}

/// Stores this CTA's partial result of a split tile and counts it. Returns true in the CTA that
/// counts last, which then holds the merged result. Parts are always added in the same order,
/// whichever CTA is last.
template <class T>
__device__ __forceinline__ bool merge_parts(ConsumerPipeline<T>& pipe,
                                            OAccumulator<T::kDimV>& o_acc, auto& softmax) {
  const planning::KvShare& share = pipe.descriptor_of(pipe.tile).share;
  bool& merges = pipe.shared.merges[pipe.tile % T::kQueryStages][pipe.consumer];
  auto* partials = static_cast<typename T::Partial*>(pipe.args.partials) + pipe.consumer;
  store_partial<T::kDimV>(partials[(share.slot + share.part) * T::kSplitConsumers], o_acc, softmax,
                          pipe.thread());
  __threadfence();
  pipe.sync_warpgroup();
  if (pipe.thread() == 0) {
    const int before =
        count_up(&pipe.args.merge_counts[share.tile * T::kSplitConsumers + pipe.consumer],
                 pipe.args.walk.tag, share.parts, false);
    merges = before == share.parts - 1;
    __threadfence();
  }
  pipe.sync_warpgroup();
  if (!agreed(merges)) return false;
  softmax = {};
  clear<T::kDimV>(o_acc);
#pragma unroll 1
  for (int part = 0; part < share.parts; ++part)
    add_partial<false, T::kDimV>(partials[(share.slot + part) * T::kSplitConsumers], o_acc, softmax,
                                 pipe.thread());
  return true;
}

}  // namespace tessera::cuda::sm90::attention
