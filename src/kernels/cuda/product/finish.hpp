#pragma once

#include <algorithm>
#include <utility>

#include <tessera/matmul.hpp>

#include "src/kernels/cuda/product/epilogue.cuh"

// The epilogue of a problem, as kernel arguments.
namespace tessera::cuda::product {

inline Plane plane_of(const Tensor& t) {
  if (!t) return {};
  return {t.data, t.dtype, t.stride(t.rank - 2), t.stride(t.rank - 1),
          t.rank == 3 && t.size(0) > 1 ? t.stride(0) : 0};
}

/// Whether every eight adjacent elements along a dimension can be written by one aligned 16-byte
/// store. `along`, `across`: strides of that dimension and of the other one.
inline bool supports_wide_stores(const Plane& out, std::int64_t along, std::int64_t across) {
  return along == 1 && size_of(out.dtype) == 2 && across % 8 == 0 && out.batch % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(out.data) % 16 == 0;
}

/// `swapped`: the product is computed as its transpose, so rows and columns of the result are
/// exchanged.
inline Finish finish_of(const MatmulProblem& problem, bool swapped) {
  const Epilogue& e = problem.epilogue;
  Finish finish;
  finish.out = plane_of(problem.out);
  finish.alpha = e.alpha;
  finish.beta = e.beta;
  finish.activation = e.activation;
  if (e.beta != 0.0f) finish.c = plane_of(e.c ? e.c : problem.out);
  if (e.bias) {
    const std::int64_t step = e.bias.stride(e.bias.rank - 1);
    const bool by_row = e.bias_axis == BiasAxis::row;
    finish.bias = {e.bias.data, e.bias.dtype, by_row ? step : 0, by_row ? 0 : step,
                   e.bias.rank == 2 && e.bias.size(0) > 1 ? e.bias.stride(0) : 0};
  }
  if (swapped)
    for (Plane* plane : {&finish.out, &finish.c, &finish.bias}) std::swap(plane->row, plane->col);
  finish.wide = supports_wide_stores(finish.out, finish.out.col, finish.out.row);
  finish.tall = supports_wide_stores(finish.out, finish.out.row, finish.out.col);
  return finish;
}

}  // namespace tessera::cuda::product
