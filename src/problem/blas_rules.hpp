#pragma once

#include <algorithm>
#include <cstdint>

#include <tessera/matmul.hpp>

#include "src/problem/blas_fp8.hpp"
#include "src/problem/shape.hpp"
#include "src/problem/tma_rules.hpp"

// Requirements of a BLAS on a dense product's tensors: rows or columns contiguous, no element
// shared by two of them, and an epilogue of alpha, beta and a bias. The last two dimensions hold a
// matrix.
namespace tessera::planning {

/// Which of a matrix's lines lie contiguous in memory.
enum class Order : std::uint8_t { rows, columns };

/// A matrix with contiguous lines, in elements.
struct BlasMatrix {
  std::int64_t length = 0, lines = 0;  // elements of a contiguous line; lines
  std::int64_t pitch = 0;              // from one line to the next: a BLAS's leading dimension
  std::int64_t batch = 0;              // from one matrix to the next; 0: one for all
};

/// Whether a tensor's matrices have contiguous rows (columns). A line of one element, or a single
/// line, has any stride.
inline bool lies_in(const Tensor& t, Order order) {
  const int along = order == Order::rows ? t.rank - 1 : t.rank - 2;
  const int across = order == Order::rows ? t.rank - 2 : t.rank - 1;
  if (t.size(along) == 0 || t.size(across) == 0) return true;  // nothing lies anywhere
  if (t.size(along) > 1 && t.stride(along) != 1) return false;
  if (t.size(across) > 1 && t.stride(across) < std::max<std::int64_t>(t.size(along), 1))
    return false;
  return t.rank == 2 || t.size(0) <= 1 || t.stride(0) >= 0;
}

inline BlasMatrix blas_matrix(const Tensor& t, Order order) {
  const int along = order == Order::rows ? t.rank - 1 : t.rank - 2;
  const int across = order == Order::rows ? t.rank - 2 : t.rank - 1;
  return {.length = t.size(along),
          .lines = t.size(across),
          .pitch = t.size(across) > 1 ? t.stride(across) : std::max<std::int64_t>(t.size(along), 1),
          .batch = t.rank == 3 && t.size(0) > 1 ? t.stride(0) : 0};
}

/// The order in which the result is written, as C and the bias allow it.
inline bool epilogue_fits(const MatmulProblem& problem, Order order) {
  const Epilogue& e = problem.epilogue;
  if (e.beta != 0 && e.c && !lies_in(e.c, order)) return false;
  return !e.bias || (e.bias_axis == BiasAxis::column) == (order == Order::rows);
}
inline Order result_order(const MatmulProblem& problem) {
  for (const Order order : {Order::rows, Order::columns})
    if (lies_in(problem.out, order) && epilogue_fits(problem, order)) return order;
  return lies_in(problem.out, Order::rows) ? Order::rows : Order::columns;
}

/// What a BLAS does not compute of a dense product, the first of it.
inline BlasLimit blas_limit(const MatmulProblem& problem) {
  const auto unreadable = [](const Tensor& t) {
    return !lies_in(t, Order::rows) && !lies_in(t, Order::columns);
  };
  const Epilogue& e = problem.epilogue;
  const Tensor& out = problem.out;
  if (unreadable(problem.a.dense)) return BlasLimit::a;
  if (unreadable(problem.b.dense)) return BlasLimit::b;
  if (unreadable(out)) return BlasLimit::out;
  // A BLAS need not read a and b then, where NaN times 0 is NaN.
  if (e.alpha == 0) return BlasLimit::alpha;
  if (e.activation != Activation::none) return BlasLimit::activation;
  const Order order = result_order(problem);
  // Of 16-bit results, some algorithms round the product before they add c.
  if (e.beta != 0 && size_of(out.dtype) < 4) return BlasLimit::c;
  if (e.beta != 0 && e.c && (e.c.dtype != out.dtype || !lies_in(e.c, order))) return BlasLimit::c;
  if (e.bias) {
    const Tensor& bias = e.bias;
    const bool batches = bias.rank == 2 && bias.size(0) > 1;
    const bool aligned =
        begins_aligned(bias) &&
        (!batches || (bias.stride(0) >= 0 && bias.stride(0) * size_of(bias.dtype) % 16 == 0));
    const bool packed = bias.size(bias.rank - 1) <= 1 || bias.stride(bias.rank - 1) == 1;
    // Beside operands in FP8 the library adds a bias of 16 bits to an f32 result.
    const bool fp8 = core::is_fp8(problem.a.dense.dtype);
    const DType wanted = fp8 && out.dtype == DType::f32 ? DType::bf16 : out.dtype;
    if (bias.dtype != wanted || !packed || !aligned || !epilogue_fits(problem, order))
      return BlasLimit::bias;
  }
  return BlasLimit::none;
}

/// Fills in what a GPU's plan depends on.
inline void set_blas_limit(const MatmulProblem& problem, MatmulShape& shape) {
  if (shape.grouped || shape.a.sparse || shape.b.sparse) return;
  shape.blas = blas_limit(problem);
  if (shape.blas == BlasLimit::none && core::is_fp8(shape.a.dtype)) {
    const int last = problem.out.rank - 1;
    shape.blas = fp8_limit(problem, shape, result_order(problem) == Order::rows ? last : last - 1);
  }
}

}  // namespace tessera::planning
