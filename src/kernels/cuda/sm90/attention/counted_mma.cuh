#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>

#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

namespace tessera::cuda::sm90::attention {

/// The MMA of P, in registers, by V and by eight columns more.
template <class Element, int kN>
constexpr auto counting_atom() {
  constexpr auto a = tile::gmma::Major::K, b = tile::gmma::Major::MN;
  if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
    if constexpr (kN == 128) return tile::gmma::MMA_64x136x16_F32BF16BF16_RS<a, b>{};
    if constexpr (kN == 96) return tile::gmma::MMA_64x104x16_F32BF16BF16_RS<a, b>{};
  } else {
    static_assert(std::is_same_v<Element, __half>);
    if constexpr (kN == 128) return tile::gmma::MMA_64x136x16_F32F16F16_RS<a, b>{};
    if constexpr (kN == 96) return tile::gmma::MMA_64x104x16_F32F16F16_RS<a, b>{};
  }
}

/// o_acc += P * V over a depth of 16; `p_sum` gets the product with the columns of ones behind
/// V.
template <class Element, int kN>
__device__ __forceinline__ void counting_mma(float (&o_acc)[kN / 2], float (&p_sum)[4],
                                             const std::uint32_t* p, std::uint64_t values) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    decltype(counting_atom<Element, kN>())::fma(p[0], p[1], p[2], p[3], values, o_acc[I]...,
                                                p_sum[0], p_sum[1], p_sum[2], p_sum[3],
                                                tile::gmma::ScaleOut::One);
  }
  (std::make_index_sequence<kN / 2>{});
}

}  // namespace tessera::cuda::sm90::attention
