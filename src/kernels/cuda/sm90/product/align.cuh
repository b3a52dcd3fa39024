#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <tessera/tensor.hpp>

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"

// Copies a matrix that TMA cannot read (odd pitches, unaligned starts, strides in both directions)
// into an aligned one.
namespace tessera::cuda::product {}

namespace tessera::cuda::sm90::product {

using namespace cuda::product;  // shared by all architectures

/// Copies lines of 16-bit elements, `step` apart in the source, into contiguous lines with the
/// pitch `pitch`.
struct LineCopy {
  const std::uint16_t* from;
  std::uint16_t* to;
  std::int64_t length, lines, batches;
  std::int64_t step, line, batch;  // source strides: elements, lines, batches
  std::int64_t pitch;
  const std::uint16_t* end;  // end of the source, if step is 1
};

/// Loads eight elements from any address, through the two aligned 16-byte words that contain them.
/// Reads up to 14 bytes before and 16 bytes after them.
__device__ __forceinline__ uint4 eight_from(const std::uint16_t* from) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  const unsigned skip = address % 16;
  const auto* aligned = reinterpret_cast<const uint4*>(address - skip);
  const uint4 a = __ldg(aligned), b = __ldg(aligned + 1);
  std::uint32_t w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = skip & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = skip & 4 ? w[i + 1] : w[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = skip & 2 ? __funnelshift_r(w[i], w[i + 1], 16) : w[i];
  return {w[0], w[1], w[2], w[3]};
}

/// One warp per line.
template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32) align_lines(const LineCopy copy) {
  const std::int64_t index = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (index >= copy.lines * copy.batches) return;
  const std::uint16_t* from =
      copy.from + index / copy.lines * copy.batch + index % copy.lines * copy.line;
  std::uint16_t* to = copy.to + index * copy.pitch;
  for (std::int64_t at = threadIdx.x % 32 * 8; at < copy.length; at += 32 * 8) {
    uint4 eight;
    if (copy.step == 1 && from + at - 8 >= copy.from && from + at + 16 <= copy.end) {
      eight = eight_from(from + at);
    } else {
      std::uint32_t pair[4] = {};
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (at + i < copy.length)
          pair[i / 2] |= std::uint32_t{from[(at + i) * copy.step]} << i % 2 * 16;
      eight = {pair[0], pair[1], pair[2], pair[3]};
    }
    *reinterpret_cast<uint4*>(to + at) = eight;
  }
}

/// The dimension whose elements are contiguous; the last one if there is none.
inline int contiguous_dimension(const Tensor& t) {
  const int rows = t.rank - 2, cols = t.rank - 1;
  return t.stride(rows) == 1 && t.stride(cols) != 1 ? rows : cols;
}

/// Copies `t` into `space` and returns the copy, contiguous in the dimension `along`.
inline Tensor aligned_copy(const Tensor& t, int along, void* space, void* stream) {
  const int across = along == t.rank - 1 ? t.rank - 2 : t.rank - 1;
  const std::int64_t batches = t.rank == 3 ? t.size(0) : 1;
  LineCopy copy{static_cast<const std::uint16_t*>(t.data),
                static_cast<std::uint16_t*>(space),
                t.size(along),
                t.size(across),
                batches,
                t.stride(along),
                t.stride(across),
                t.rank == 3 ? t.stride(0) : 0,
                planning::copied_pitch(t.size(along)),
                nullptr};
  copy.end =
      copy.from + (copy.batches - 1) * copy.batch + (copy.lines - 1) * copy.line + copy.length;
  Tensor result = t;
  result.data = space;
  result.strides[along] = 1;
  result.strides[across] = copy.pitch;
  if (t.rank == 3) result.strides[0] = copy.pitch * copy.lines;
  constexpr int kWarps = 8;
  const std::int64_t lines = copy.lines * copy.batches;
  if (copy.length == 0) return result;
  Kernel<align_lines<kWarps>>::launch(
      {"align_lines", grid_of((lines + kWarps - 1) / kWarps), kWarps * 32, stream}, copy);
  return result;
}

}  // namespace tessera::cuda::sm90::product
