// Tensor-core rates by shape of the wgmma instruction. Two warpgroups per SM multiply tiles that
// stay in shared memory, as the library's kernels do.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "bench/ceilings/kernel.hpp"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

namespace tessera::ceilings {
namespace {

/// The descriptor advanced by `step`; its upper half never changes.
__device__ __forceinline__ std::uint64_t stepped(std::uint64_t view, std::uint32_t step) {
  return (view & ~0xFFFFFFFFull) | (static_cast<std::uint32_t>(view) + step);
}

namespace tile = cuda::tile;

constexpr int kWarpgroups = 2, kThreads = 128 * kWarpgroups;
constexpr int kRows = 64;                                               // rows of A per instruction
constexpr int kStepBytes = 32, kSteps = tile::kLineBytes / kStepBytes;  // a line's depth
constexpr int kStages = 4;
/// Repetitions between resets of the sums, which limit the depth of a sum to some thousand.
constexpr int kTileRepeats = 8;
/// More than half of an SM's shared memory, so that each SM gets one CTA.
constexpr int kMinSharedBytes = 120 * 1024;

/// One instruction: 64 x kN, 32 bytes deep, A in registers or in shared memory.
template <class E, int kWidth, bool kRegisters>
struct Instruction {
  using Element = E;
  static constexpr int kN = kWidth;
  static constexpr bool kFromRegisters = kRegisters;
  static constexpr int kDepth = kStepBytes / sizeof(Element);
  static constexpr double kFlops = 2.0 * kRows * kN * kDepth;
};

/// Tiles of lines with the 128-byte swizzle. The order of elements does not matter, since all are
/// random.
template <class I>
struct Shared {
  alignas(tile::kAtomBytes) unsigned char a[kStages][kWarpgroups][kRows * tile::kLineBytes];
  alignas(tile::kAtomBytes) unsigned char b[kStages][I::kN * tile::kLineBytes];
};

template <std::size_t... i>
__device__ __forceinline__ void multiply_e4m3(float (&sum)[256 / 2], std::uint64_t a,
                                              std::uint64_t b, bool first,
                                              std::index_sequence<i...>) {
  cute::SM90::GMMA::MMA_64x256x32_F32E4M3E4M3_SS_TN<>::fma(
      a, b, sum[i]..., first ? tile::gmma::ScaleOut::Zero : tile::gmma::ScaleOut::One);
}

template <class I>
__device__ __forceinline__ void multiply(float (&sum)[I::kN / 2], const std::uint32_t* fragment,
                                         std::uint64_t a, std::uint64_t b, bool first) {
  using enum tile::Major;
  if constexpr (I::kFromRegisters)
    tile::mma<typename I::Element, I::kN, k>(sum, fragment, b, first);
  else if constexpr (std::is_same_v<typename I::Element, __nv_fp8_e4m3>)
    multiply_e4m3(sum, a, b, first, std::make_index_sequence<I::kN / 2>{});
  else
    tile::mma<typename I::Element, I::kN, k, k>(sum, a, b, first);
}

/// `out` gets one number per thread, so that the compiler keeps all work.
template <class I>
__global__ void __launch_bounds__(kThreads, 1)
    tensor_kernel(const uint4* data, float* out, int repeats) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<Shared<I>>(raw);
  auto* words = reinterpret_cast<uint4*>(&shared);
  for (int i = threadIdx.x; i < static_cast<int>(sizeof(shared) / sizeof(uint4)); i += kThreads)
    words[i] = data[i];
  tile::ptx::fence_proxy_async(tile::ptx::space_shared);  // makes the stores visible to wgmma
  __syncthreads();

  std::uint32_t fragments[kSteps][4];
  for (int step = 0; step < kSteps; ++step) {
    const uint4 word = data[step * kThreads + threadIdx.x];
    fragments[step][0] = word.x, fragments[step][1] = word.y;
    fragments[step][2] = word.z, fragments[step][3] = word.w;
  }

  const auto view = [](const void* start) {
    return tile::uniform(tile::descriptor(start, 0, tile::kAtomBytes));
  };
  const std::uint64_t a = view(shared.a[0][threadIdx.x / 128]), b = view(shared.b[0]);
  constexpr std::uint32_t kNextA = sizeof(shared.a[0]) >> 4, kNextB = sizeof(shared.b[0]) >> 4;
  constexpr std::uint32_t kNextStep = kStepBytes >> 4;
  float sum[I::kN / 2] = {};
#pragma unroll 1
  for (int i = 0; i < repeats; ++i) {
    const bool begins = i % kTileRepeats == 0;
    tile::mma_fence();
#pragma unroll
    for (int stage = 0; stage < kStages; ++stage) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        multiply<I>(sum, fragments[step], stepped(a, stage * kNextA + step * kNextStep),
                    stepped(b, stage * kNextB + step * kNextStep),
                    begins && stage == 0 && step == 0);
      }
    }
    tile::mma_commit();
    tile::mma_wait<1>();  // keeps one group in flight while the next one is issued
  }
  tile::mma_wait<0>();
  tile::settle(sum);
  float total = 0;
  for (const float one : sum) total += one;
  out[blockIdx.x * kThreads + threadIdx.x] = total;
}

template <class I>
cudaError_t launch(const void* data, void* out, unsigned sms, int repeats, cudaStream_t stream) {
  constexpr int kBytes = std::max(kMinSharedBytes, int{sizeof(Shared<I>)} + tile::kAtomBytes);
  const cudaError_t status =
      cudaFuncSetAttribute(tensor_kernel<I>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (status != cudaSuccess) return status;
  tensor_kernel<I><<<sms, kThreads, kBytes, stream>>>(static_cast<const uint4*>(data),
                                                      static_cast<float*>(out), repeats);
  return cudaGetLastError();
}

template <class Element, int kN, bool kRegisters = false>
constexpr Kernel kernel(const char* name, const char* dtype) {
  using I = Instruction<Element, kN, kRegisters>;
  return {name,
          dtype,
          sizeof(Shared<I>),
          sizeof(float) * kThreads,
          I::kFlops * kSteps * kStages * kWarpgroups,
          launch<I>};
}

constexpr Kernel kKernels[] = {kernel<__nv_bfloat16, 64>("tensor_bf16_n64", "bf16"),
                               kernel<__nv_bfloat16, 64, true>("tensor_bf16_n64_rs", "bf16"),
                               kernel<__nv_bfloat16, 128>("tensor_bf16_n128", "bf16"),
                               kernel<__nv_bfloat16, 128, true>("tensor_bf16_n128_rs", "bf16"),
                               kernel<__nv_bfloat16, 256>("tensor_bf16_n256", "bf16"),
                               kernel<__nv_bfloat16, 256, true>("tensor_bf16_n256_rs", "bf16"),
                               kernel<__half, 256>("tensor_f16_n256", "f16"),
                               kernel<__nv_fp8_e4m3, 256>("tensor_e4m3_n256", "e4m3"),
                               {}};

}  // namespace
}  // namespace tessera::ceilings

TESSERA_CEILINGS(tensor) { return tessera::ceilings::kKernels; }
