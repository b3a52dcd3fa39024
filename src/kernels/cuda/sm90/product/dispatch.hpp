#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "src/core/check.hpp"
#include "src/kernels/cuda/sm90/product/source.hpp"

namespace tessera::cuda::sm90::product {

/// visit.template operator()<Element, kMajorA, kMajorB>(): from what two operands are to the types
/// that a kernel is compiled for. `kDtypes`: those of the kernel row.
template <unsigned kDtypes, class Visit>
void with_types(const Source& a, const Source& b, const Visit& visit) {
  const auto with_element = [&]<class Element>() {
    const bool a_deep = a.major == Major::k, b_deep = b.major == Major::k;
    if (a_deep && b_deep) return visit.template operator()<Element, Major::k, Major::k>();
    if (a_deep) return visit.template operator()<Element, Major::k, Major::mn>();
    if (b_deep) return visit.template operator()<Element, Major::mn, Major::k>();
    return visit.template operator()<Element, Major::mn, Major::mn>();
  };
  static_assert(kDtypes != 0 && (kDtypes & ~core::dtypes({DType::f16, DType::bf16})) == 0,
                "a row of this family states a dtype that its kernel does not multiply");
  if constexpr ((kDtypes & core::dtypes({DType::bf16})) != 0) {
    if (a.map.dtype == DType::bf16) return with_element.template operator()<__nv_bfloat16>();
  }
  if constexpr ((kDtypes & core::dtypes({DType::f16})) != 0) {
    if (a.map.dtype == DType::f16) return with_element.template operator()<__half>();
  }
}

}  // namespace tessera::cuda::sm90::product
