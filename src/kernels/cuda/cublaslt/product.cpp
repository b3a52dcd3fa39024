#include "src/kernels/cuda/cublaslt/product.hpp"

#include "src/problem/blas_rules.hpp"

namespace tessera::cuda::cublaslt {
namespace {

using planning::BlasMatrix;
using planning::lies_in;
using planning::Order;

std::int64_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::int64_t bytes = kMaxAlignment;
  while (bytes > 1 && address % static_cast<std::uintptr_t>(bytes) != 0) bytes /= 2;
  return bytes;
}

/// A tensor whose lines in this order are the columns of the matrix.
Matrix matrix_of(const Tensor& t, Order order) {
  const BlasMatrix lines = planning::blas_matrix(t, order);
  return {.rows = lines.length,
          .cols = lines.lines,
          .pitch = lines.pitch,
          .batch = lines.batch,
          .transpose = 0,
          .alignment = alignment_of(t.data)};
}

/// An operand as it lies; of two possible orders, the one with the longer lines.
Matrix side_of(const Operand& operand, bool want_transposed) {
  const Tensor& t = operand.dense;
  Order order = lies_in(t, Order::rows) ? Order::rows : Order::columns;
  if (lies_in(t, Order::columns) && t.size(t.rank - 2) > t.size(t.rank - 1)) order = Order::columns;
  Matrix side = matrix_of(t, order);
  // Read by columns, contiguous rows are the transposed matrix.
  side.transpose = (order == Order::rows) != want_transposed;
  return side;
}

}  // namespace

Product product_of(const MatmulProblem& problem, const planning::MatmulShape& shape,
                   std::int64_t workspace) {
  const Epilogue& e = problem.epilogue;
  const Order order = planning::result_order(problem);
  const bool by_rows = order == Order::rows;
  // (A B)^T = B^T A^T.
  const Operand &left = by_rows ? problem.b : problem.a, &right = by_rows ? problem.a : problem.b;
  Product product;
  product.left = left.dense.data;
  product.right = right.dense.data;
  product.left_scale = left.scale.data;
  product.right_scale = right.scale.data;
  product.out = problem.out.data;
  product.alpha = e.alpha;
  product.beta = e.beta;
  const Tensor& c = e.beta != 0 && e.c ? e.c : problem.out;
  product.c = c.data;
  Key& key = product.key;
  key.depth = shape.k;
  key.batch = shape.batch;
  key.left = side_of(left, left.transposed != by_rows);
  key.right = side_of(right, right.transposed != by_rows);
  key.out = matrix_of(problem.out, order);
  key.c = matrix_of(c, order);
  key.left_dtype = static_cast<std::int64_t>(left.dense.dtype);
  key.right_dtype = static_cast<std::int64_t>(right.dense.dtype);
  const planning::ScaleModes modes = planning::scale_modes(shape).value_or(planning::ScaleModes{});
  key.left_scales = static_cast<std::int64_t>(by_rows ? modes.b : modes.a);
  key.right_scales = static_cast<std::int64_t>(by_rows ? modes.a : modes.b);
  key.result = static_cast<std::int64_t>(shape.out);
  if (e.bias) {
    product.bias = e.bias.data;
    key.bias = static_cast<std::int64_t>(e.bias.dtype);
    key.bias_batch = e.bias.rank == 2 && e.bias.size(0) > 1 ? e.bias.stride(0) : 0;
  }
  key.workspace = workspace;
  key.device = shape.device.index;
  return product;
}

}  // namespace tessera::cuda::cublaslt
