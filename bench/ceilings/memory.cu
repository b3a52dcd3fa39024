// Read bandwidth of GPU memory: 2 GiB, each byte once, far more than any L2 holds.
#include <cuda_bf16.h>

#include <cstddef>
#include <vector>

#include "bench/ceilings/random.hpp"
#include "bench/ceilings/steps.hpp"
#include "bench/ceilings/timing.hpp"

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

void measure(const Card&, double, Figures& figures) {
  const Memory data(kBytes), out(sizeof(unsigned));
  fill_with_normals<__nv_bfloat16>(data.as<void>(), kBytes);
  const Work work{double{kBytes}, [&](cudaStream_t stream, int repeats) {
                    for (int i = 0; i < repeats; ++i)
                      read_kernel<<<kBytes / kBlockBytes, kThreads, 0, stream>>>(
                          data.as<const uint4>(), out.as<unsigned>());
                    check(cudaGetLastError(), "read_kernel");
                  }};
  figures.emplace_back("hbm_read_tbs", burst(work).per_second * 1e-12);
}

}  // namespace

std::vector<Step> memory_steps() { return {{"memory", "hbm_read", false, measure}}; }

}  // namespace tessera::ceilings
