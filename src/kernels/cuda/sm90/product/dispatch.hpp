#pragma once

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/sm90/product/source.hpp"

namespace tessera::cuda::sm90::product {

/// Calls visit.template operator()<Element, kMajorA, kMajorB>() with the types for two operands.
/// `kDtypes`: the dtypes of the kernel row.
template <unsigned kDtypes, class Visit>
void with_types(const Source& a, const Source& b, const Visit& visit) {
  const bool a_deep = a.major == Major::k, b_deep = b.major == Major::k;
  with_multiplied<kDtypes>(a.map.dtype, [&]<class Element>() {
    if (a_deep && b_deep) return visit.template operator()<Element, Major::k, Major::k>();
    if (a_deep) return visit.template operator()<Element, Major::k, Major::mn>();
    if (b_deep) return visit.template operator()<Element, Major::mn, Major::k>();
    return visit.template operator()<Element, Major::mn, Major::mn>();
  });
}

}  // namespace tessera::cuda::sm90::product
