// The cost of a launch on the GPU: empty kernels of one thread block per SM, one after another, and
// a kernel that keeps the stream busy until the host has enqueued them.
#include "bench/ceilings/kernel.hpp"
#include "src/kernels/cuda/common/grid.cuh"

namespace tessera::ceilings {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads) empty_kernel() {}

/// Lets the next grid begin at once, and waits for the previous one.
__global__ void __launch_bounds__(kThreads) overlapping_kernel() {
  cuda::let_next_grid_begin();
  cuda::wait_for_grid_before();
}

__global__ void delay_kernel(unsigned long long nanoseconds) {
  const auto now = [] {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  const unsigned long long begin = now();
  while (now() - begin < nanoseconds) {
  }
}

cudaError_t launch_empty(const void*, void*, unsigned sms, int repeats, cudaStream_t stream) {
  for (int i = 0; i < repeats; ++i) empty_kernel<<<sms, kThreads, 0, stream>>>();
  return cudaGetLastError();
}

cudaError_t launch_overlapping(const void*, void*, unsigned sms, int repeats, cudaStream_t stream) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  const cudaLaunchConfig_t config{.gridDim = sms,
                                  .blockDim = kThreads,
                                  .dynamicSmemBytes = 0,
                                  .stream = stream,
                                  .attrs = &overlap,
                                  .numAttrs = 1};
  cudaError_t status = cudaSuccess;
  for (int i = 0; i < repeats && status == cudaSuccess; ++i)
    status = cudaLaunchKernelEx(&config, overlapping_kernel);
  return status;
}

/// A repetition is a nanosecond.
cudaError_t launch_delay(const void*, void*, unsigned, int repeats, cudaStream_t stream) {
  delay_kernel<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(repeats));
  return cudaGetLastError();
}

constexpr Kernel kKernels[] = {{"launch", "", 0, 0, 0, launch_empty},
                               {"overlapped_launch", "", 0, 0, 0, launch_overlapping},
                               {"delay", "", 0, 0, 0, launch_delay},
                               {}};

}  // namespace
}  // namespace tessera::ceilings

TESSERA_CEILINGS(launch) { return tessera::ceilings::kKernels; }
