#pragma once

#include <cstdint>

#include "src/kernels/family.hpp"

// A problem as numbers for a column-major BLAS: out = alpha * op(left) op(right) + beta * c + bias.
// A result with contiguous rows is computed as its transpose.
namespace tessera::cuda::cublaslt {

/// A column-major matrix; strides in elements.
struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::int64_t pitch = 0;      // from column to column
  std::int64_t batch = 0;      // from matrix to matrix
  std::int64_t transpose = 0;  // whether the product reads it transposed
  std::int64_t alignment = 0;  // of the first element: bytes, at most kMaxAlignment
  friend bool operator==(const Matrix&, const Matrix&) = default;
};

/// More than kernels need. A plan's tensors share this alignment where they are aligned at all, so
/// that the same algorithm runs, with the same bits.
inline constexpr std::int64_t kMaxAlignment = 16;

/// All that an algorithm depends on: the key of the cache.
struct Key {
  std::int64_t depth = 0, batch = 0;
  Matrix left, right, c, out;
  std::int64_t left_dtype = 0, right_dtype = 0;    // DType
  std::int64_t result = 0;                         // DType of c and the result
  std::int64_t left_scales = 0, right_scales = 0;  // ScaleMode
  std::int64_t bias = 0, bias_batch = 0;           // its DType or none; one value per row of `out`
  std::int64_t workspace = 0, device = 0;
  friend bool operator==(const Key&, const Key&) = default;
};

struct Product {
  Key key;
  const void *left = nullptr, *right = nullptr, *c = nullptr, *bias = nullptr;
  const void *left_scale = nullptr, *right_scale = nullptr;  // absent: 1
  void* out = nullptr;
  float alpha = 1, beta = 0;
};

/// Of a problem whose shape this family supports.
Product product_of(const MatmulProblem& problem, const planning::MatmulShape& shape,
                   std::int64_t workspace);

}  // namespace tessera::cuda::cublaslt
