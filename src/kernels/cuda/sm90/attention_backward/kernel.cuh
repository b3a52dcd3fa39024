#pragma once

#include "src/kernels/cuda/sm90/attention_backward/consumer.cuh"
#include "src/kernels/cuda/sm90/attention_backward/key_value_consumer.cuh"
#include "src/kernels/cuda/sm90/attention_backward/producer.cuh"
#include "src/kernels/cuda/sm90/attention_backward/sender.cuh"
#include "src/kernels/cuda/sm90/attention_backward/tall_consumer.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"
#include "src/kernels/cuda/sm90/attention_backward/wide_consumers.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The kernel: one thread block per SM, which takes one key tile, or half of one, after another. It
// initialises the barriers and dispatches each warp to its role.
namespace tessera::cuda::sm90::attention_backward {

template <class T>
__device__ void init_barriers(typename T::Shared& shared) {
  constexpr int kOfConsumer = kWarpgroup / kLanes * kWarpArrivals;  // arrivals per phase
  constexpr int kOfConsumers = T::kConsumers * kOfConsumer;
  shared.kv_ring.init(kOfConsumers);
  shared.tile_ring.init(kOfConsumers + (T::kSendsDq ? T::kSenders : 0), kWarpArrivals);
  shared.q_ring.init(kOfConsumers);
  shared.g_ring.init(kOfConsumers);
  shared.ds_ring.init(kOfConsumers, kOfConsumers);
  shared.p_ring.init(kOfConsumer, kOfConsumer);
  shared.step_ring.init(T::kParts);
  for (int buffer = 0; buffer < T::kDqBuffers; ++buffer) {
    tile::ptx::mbarrier_init(&shared.dq_empty[buffer], 1);
    for (std::uint64_t& barrier : shared.dq_full[buffer])
      tile::ptx::mbarrier_init(&barrier, kOfConsumer);
  }
  tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    attention_backward_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(tile::kAtomBytes) char raw[];
  auto& shared = *reinterpret_cast<typename T::Shared*>(raw);
  const int warpgroup = __shfl_sync(kAllLanes, threadIdx.x / kWarpgroup, 0);
  if (threadIdx.x == 0) {
    tile::prefetch(args.q);
    tile::prefetch(args.k);
    tile::prefetch(args.v);
    tile::prefetch(args.dout);
  }
  if (threadIdx.x == kWarpgroup) init_barriers<T>(shared);
  __syncthreads();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<T::kProducerRegisters>();
    if (threadIdx.x < kLanes) {
      Producer<T>(args, shared).run();
    } else if constexpr (T::kSendsDq) {
      if (tile::elect()) Sender<T>(args, shared, threadIdx.x / kLanes - 1).run();
    }
  } else {
    cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    if constexpr (T::kKeyParts == 2) {
      if (warpgroup == 1)
        WideValueConsumer<T>(args, shared).run();
      else
        WideKeyConsumer<T>(args, shared).run();
    } else if constexpr (!T::kSendsDq)
      KeyValueConsumer<T>(args, shared, warpgroup - 1).run();
    else if constexpr (T::kBlocks > 1)
      TallConsumer<T>(args, shared, warpgroup - 1).run();
    else
      Consumer<T>(args, shared, warpgroup - 1).run();
  }
}

}  // namespace tessera::cuda::sm90::attention_backward
