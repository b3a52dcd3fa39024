// Rate of reads from the card's memory: 2 GiB, each byte once, much more than any L2 holds.
#include <cstddef>

#include "bench/ceilings/kernel.hpp"

namespace tessera::ceilings {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 8;  // loads in flight per thread
constexpr std::size_t kBytes = std::size_t{1} << 31;
constexpr std::size_t kBlockBytes = sizeof(uint4) * kThreads * kAhead;
static_assert(kBytes % kBlockBytes == 0);

/// Stores only if the words have one particular checksum, which practically never happens: the
/// compiler has to keep the loads, but nothing is written.
__global__ void __launch_bounds__(kThreads) read_kernel(const uint4* data, unsigned* out) {
  const uint4* mine = data + std::size_t{blockIdx.x} * kThreads * kAhead + threadIdx.x;
  uint4 words[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) words[i] = mine[i * kThreads];
  unsigned sum = 0;
#pragma unroll
  for (const uint4& word : words) sum += word.x ^ word.y ^ word.z ^ word.w;
  if (sum == 0x5EED5EEDu) *out = sum;
}

cudaError_t launch(const void* data, void* out, unsigned, int repeats, cudaStream_t stream) {
  for (int i = 0; i < repeats; ++i)
    read_kernel<<<kBytes / kBlockBytes, kThreads, 0, stream>>>(static_cast<const uint4*>(data),
                                                               static_cast<unsigned*>(out));
  return cudaGetLastError();
}

constexpr Kernel kKernels[] = {{"hbm_read", "bf16", kBytes, sizeof(unsigned), kBytes, launch}, {}};

}  // namespace
}  // namespace tessera::ceilings

TESSERA_CEILINGS(memory) { return tessera::ceilings::kKernels; }
