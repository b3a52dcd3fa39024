#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "src/kernels/cuda/sm90/product/source.hpp"

namespace tessera::cuda::sm90::product {

/// visit.template operator()<Element, kMajorA, kMajorB>(): from what two operands are to the types
/// that a kernel is compiled for.
template <class Visit>
void with_types(const Source& a, const Source& b, const Visit& visit) {
  const auto with_element = [&]<class Element>() {
    const bool a_deep = a.major == Major::k, b_deep = b.major == Major::k;
    if (a_deep && b_deep) return visit.template operator()<Element, Major::k, Major::k>();
    if (a_deep) return visit.template operator()<Element, Major::k, Major::mn>();
    if (b_deep) return visit.template operator()<Element, Major::mn, Major::k>();
    return visit.template operator()<Element, Major::mn, Major::mn>();
  };
  if (a.map.dtype == DType::bf16) return with_element.template operator()<__nv_bfloat16>();
  return with_element.template operator()<__half>();
}

}  // namespace tessera::cuda::sm90::product
