#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include <cutlass/arch/reg_reconfig.h>
#include <cute/arch/mma_sm90_gmma.hpp>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// wgmma on accumulator arrays: one warpgroup multiplies 64 x N x 32 bytes of depth, with B (and
// mostly A) in shared memory.
namespace tessera::cuda::tile {

namespace gmma = cute::SM90::GMMA;

template <Major kMajor>
inline constexpr gmma::Major kGmmaMajor = kMajor == Major::k ? gmma::Major::K : gmma::Major::MN;

/// The CUTLASS atom for an element type and a width, A in shared memory; void if there is none.
template <class Element, int kN, Major kA, Major kB>
constexpr auto atom() {
  constexpr gmma::Major a = kGmmaMajor<kA>, b = kGmmaMajor<kB>;
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    if constexpr (kN == 256) return gmma::MMA_64x256x16_F32BF16BF16_SS<a, b>{};
    if constexpr (kN == 128) return gmma::MMA_64x128x16_F32BF16BF16_SS<a, b>{};
    if constexpr (kN == 96) return gmma::MMA_64x96x16_F32BF16BF16_SS<a, b>{};
    if constexpr (kN == 192) return gmma::MMA_64x192x16_F32BF16BF16_SS<a, b>{};
    if constexpr (kN == 64) return gmma::MMA_64x64x16_F32BF16BF16_SS<a, b>{};
    if constexpr (kN == 32) return gmma::MMA_64x32x16_F32BF16BF16_SS<a, b>{};
    if constexpr (kN == 16) return gmma::MMA_64x16x16_F32BF16BF16_SS<a, b>{};
  } else if constexpr (std::is_same_v<Element, __half>) {
    if constexpr (kN == 256) return gmma::MMA_64x256x16_F32F16F16_SS<a, b>{};
    if constexpr (kN == 128) return gmma::MMA_64x128x16_F32F16F16_SS<a, b>{};
    if constexpr (kN == 96) return gmma::MMA_64x96x16_F32F16F16_SS<a, b>{};
    if constexpr (kN == 192) return gmma::MMA_64x192x16_F32F16F16_SS<a, b>{};
    if constexpr (kN == 64) return gmma::MMA_64x64x16_F32F16F16_SS<a, b>{};
    if constexpr (kN == 32) return gmma::MMA_64x32x16_F32F16F16_SS<a, b>{};
    if constexpr (kN == 16) return gmma::MMA_64x16x16_F32F16F16_SS<a, b>{};
  } else if constexpr (std::is_same_v<Element, __nv_fp8_e4m3>) {
    static_assert(kA == Major::k && kB == Major::k, "FP8 operands have the depth contiguous");
    if constexpr (kN == 128) return gmma::MMA_64x128x32_F32E4M3E4M3_SS_TN<>{};
    if constexpr (kN == 64) return gmma::MMA_64x64x32_F32E4M3E4M3_SS_TN<>{};
  }
}

__device__ __forceinline__ void mma_fence() { cute::warpgroup_arrive(); }
__device__ __forceinline__ void mma_commit() { cute::warpgroup_commit_batch(); }
/// Waits until at most kPending committed groups are in flight.
template <int kPending>
__device__ __forceinline__ void mma_wait() {
  cute::warpgroup_wait<kPending>();
}

/// sum (+)= A * B over the depth of one MMA; `first` overwrites `sum`.
template <class Element, int kN, Major kA, Major kB>
__device__ __forceinline__ void mma(float (&sum)[kN / 2], std::uint64_t a, std::uint64_t b,
                                    bool first) {
  using Atom = decltype(atom<Element, kN, kA, kB>());
  static_assert(!std::is_void_v<Atom>, "no wgmma of this width for this element type: see atom()");
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    Atom::fma(a, b, sum[I]..., first ? gmma::ScaleOut::Zero : gmma::ScaleOut::One);
  }
  (std::make_index_sequence<kN / 2>{});
}

/// The same with A in registers.
template <class Element, int kN, Major kB>
constexpr auto register_atom() {
  constexpr gmma::Major a = gmma::Major::K, b = kGmmaMajor<kB>;
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    if constexpr (kN == 256) return gmma::MMA_64x256x16_F32BF16BF16_RS<a, b>{};
    if constexpr (kN == 192) return gmma::MMA_64x192x16_F32BF16BF16_RS<a, b>{};
    if constexpr (kN == 128) return gmma::MMA_64x128x16_F32BF16BF16_RS<a, b>{};
    if constexpr (kN == 96) return gmma::MMA_64x96x16_F32BF16BF16_RS<a, b>{};
    if constexpr (kN == 64) return gmma::MMA_64x64x16_F32BF16BF16_RS<a, b>{};
  } else if constexpr (std::is_same_v<Element, __half>) {
    if constexpr (kN == 256) return gmma::MMA_64x256x16_F32F16F16_RS<a, b>{};
    if constexpr (kN == 192) return gmma::MMA_64x192x16_F32F16F16_RS<a, b>{};
    if constexpr (kN == 128) return gmma::MMA_64x128x16_F32F16F16_RS<a, b>{};
    if constexpr (kN == 96) return gmma::MMA_64x96x16_F32F16F16_RS<a, b>{};
    if constexpr (kN == 64) return gmma::MMA_64x64x16_F32F16F16_RS<a, b>{};
  } else if constexpr (std::is_same_v<Element, __nv_fp8_e4m3>) {
    static_assert(kB == Major::k, "FP8 operands have the depth contiguous");
    if constexpr (kN == 128) return gmma::MMA_64x128x32_F32E4M3E4M3_RS_TN<>{};
    if constexpr (kN == 96) return gmma::MMA_64x96x32_F32E4M3E4M3_RS_TN<>{};
    if constexpr (kN == 64) return gmma::MMA_64x64x32_F32E4M3E4M3_RS_TN<>{};
    if constexpr (kN == 32) return gmma::MMA_64x32x32_F32E4M3E4M3_RS_TN<>{};
    if constexpr (kN == 8) return gmma::MMA_64x8x32_F32E4M3E4M3_RS_TN<>{};
  }
}

/// 80 columns, which CUTLASS has only in a header that takes longer to compile than a kernel.
template <class Element, Major kB>
__device__ __forceinline__ void mma_of_80_columns(float (&sum)[40], const std::uint32_t* a,
                                                  std::uint64_t b, bool first) {
  constexpr int kTransposed = kB == Major::mn ? 1 : 0;
  const int scale = first ? 0 : 1;
#define TESSERA_MMA_OF_80_COLUMNS(type)                                                           \
  asm volatile(                                                                                   \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %45, 0;\n"                                                \
      "wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type                                 \
      " "                                                                                         \
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "                                                 \
      "%10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "                                        \
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "                                        \
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, "                                       \
      "{%40, %41, %42, %43}, %44, p, 1, 1, %46;\n}\n"                                             \
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]), "+f"(sum[4]), "+f"(sum[5]),       \
        "+f"(sum[6]), "+f"(sum[7]), "+f"(sum[8]), "+f"(sum[9]), "+f"(sum[10]), "+f"(sum[11]),     \
        "+f"(sum[12]), "+f"(sum[13]), "+f"(sum[14]), "+f"(sum[15]), "+f"(sum[16]), "+f"(sum[17]), \
        "+f"(sum[18]), "+f"(sum[19]), "+f"(sum[20]), "+f"(sum[21]), "+f"(sum[22]), "+f"(sum[23]), \
        "+f"(sum[24]), "+f"(sum[25]), "+f"(sum[26]), "+f"(sum[27]), "+f"(sum[28]), "+f"(sum[29]), \
        "+f"(sum[30]), "+f"(sum[31]), "+f"(sum[32]), "+f"(sum[33]), "+f"(sum[34]), "+f"(sum[35]), \
        "+f"(sum[36]), "+f"(sum[37]), "+f"(sum[38]), "+f"(sum[39])                                \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale), "n"(kTransposed))
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    TESSERA_MMA_OF_80_COLUMNS("bf16");
  } else {
    static_assert(std::is_same_v<Element, __half>);
    TESSERA_MMA_OF_80_COLUMNS("f16");
  }
#undef TESSERA_MMA_OF_80_COLUMNS
}

/// The same with A in registers: four words per lane hold the warp's 16 rows x 32 bytes of depth.
template <class Element, int kN, Major kB>
__device__ __forceinline__ void mma(float (&sum)[kN / 2], const std::uint32_t* a, std::uint64_t b,
                                    bool first) {
  if constexpr (kN == 80) {
    mma_of_80_columns<Element, kB>(sum, a, b, first);
  } else {
    using Atom = decltype(register_atom<Element, kN, kB>());
    static_assert(!std::is_void_v<Atom>,
                  "no wgmma of this width for this element type with A in registers: see "
                  "register_atom()");
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      Atom::fma(a[0], a[1], a[2], a[3], b, sum[I]...,
                first ? gmma::ScaleOut::Zero : gmma::ScaleOut::One);
    }
    (std::make_index_sequence<kN / 2>{});
  }
}

/// Stops the compiler from moving uses of `sum`, which the MMA in flight writes, across this line.
template <int kCount>
__device__ __forceinline__ void settle(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

}  // namespace tessera::cuda::tile
