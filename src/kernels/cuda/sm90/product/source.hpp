#pragma once

#include <tessera/matmul.hpp>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"

// Operands of a product as matrices for TMA.
namespace tessera::cuda::product {}

namespace tessera::cuda::sm90::product {

using namespace cuda::product;  // shared by all architectures

using tile::Major;

/// An operand as a matrix for TMA, and the dimension along which it is contiguous.
struct Source {
  tile::MatrixMap map;
  Major major = Major::k;
};

/// `extent`, `depth`: strides along M (or N) and along K; `extent_size`, `depth_size`: sizes.
inline Source source_of(const void* data, DType dtype, std::int64_t extent_size,
                        std::int64_t depth_size, std::int64_t extent, std::int64_t depth,
                        std::int64_t batches, std::int64_t batch_stride) {
  // With depth 1 either major fits; with a contiguous extent, its stride is not a valid pitch.
  const bool flat = depth_size == 1 && extent == 1;
  if ((depth == 1 || depth_size == 1) && !flat)
    return {{data, dtype, depth_size, extent_size, batches, extent, batch_stride}, Major::k};
  return {{data, dtype, extent_size, depth_size, batches, depth, batch_stride}, Major::mn};
}

inline Source dense_source(const Tensor& t, bool depth_is_rows) {
  const int rows = t.rank - 2, cols = t.rank - 1;
  const int depth = depth_is_rows ? rows : cols, extent = depth_is_rows ? cols : rows;
  const bool batched = t.rank == 3;
  return source_of(t.data, t.dtype, t.size(extent), t.size(depth), t.stride(extent),
                   t.stride(depth), batched ? t.size(0) : 1, batched ? t.stride(0) : 0);
}

/// The stored blocks as a batch of matrices.
inline Source pool_source(const BsrMatrix& matrix, bool transposed) {
  const Tensor& v = matrix.values;
  const int rows = v.rank - 2, cols = v.rank - 1;
  const int depth = transposed ? rows : cols, extent = transposed ? cols : rows;
  const std::int64_t batches = v.rank == 4 ? v.size(0) : 1;
  return source_of(v.data, v.dtype, v.size(extent), v.size(depth), v.stride(extent),
                   v.stride(depth), batches * v.size(v.rank - 3), v.stride(v.rank - 3));
}

}  // namespace tessera::cuda::sm90::product
