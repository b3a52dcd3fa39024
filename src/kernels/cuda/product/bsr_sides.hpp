#pragma once

#include <cstdint>
#include <variant>

#include <tessera/matmul.hpp>

#include "src/core/carver.hpp"
#include "src/kernels/family.hpp"
#include "src/walk/bsr_walk.hpp"
#include "src/walk/transposed_lists.hpp"

// A product with one sparse side, as kernels that walk the union of several lists see it. With
// groups of rows, b may be dense: each of its matrices is then one block that covers the matrix.
namespace tessera::cuda::product {

/// The two sides of a product: the sparse side gives the rows of the product as computed, the dense
/// side its columns.
struct BsrSides {
  bool swapped;    // b is sparse, or has a matrix per group
  Operand sparse;  // [rows, depth]
  Operand dense;   // [depth, columns]

  explicit BsrSides(const MatmulProblem& problem)
      : swapped(problem.b.is_sparse() || problem.group_offsets),
        sparse(swapped ? transpose(problem.b) : problem.a),
        dense(swapped ? transpose(problem.a) : problem.b) {}
  /// Whether the matrices of the sparse side are one block each, and there are no lists.
  bool whole() const { return !sparse.is_sparse(); }
  /// The blocks of the sparse side: rows and columns are the last two dimensions.
  const Tensor& values() const { return whole() ? sparse.dense : sparse.sparse.values; }
  int block_rows() const { return block_size(sparse.transposed ? 1 : 2); }
  int block_depth() const { return block_size(sparse.transposed ? 2 : 1); }

 private:
  int block_size(int from_last) const {
    return static_cast<int>(values().size(values().rank - from_last));
  }
};

/// The largest power of two up to `most` that divides n (a multiple of 16).
inline int largest_part(int n, int most) {
  int part = most;
  while (n % part != 0) part /= 2;
  return part;
}

/// A number of bytes in the units of Walk's strides.
inline std::uint32_t bsr_step(std::int64_t bytes) { return static_cast<std::uint32_t>(bytes / 16); }

/// The walk of a call. The kernel sets what depends on how it copies pieces: `boxed`, `copy_step`
/// and `round_step`.
inline planning::bsr::Walk bsr_walk(const planning::Call& call, const BsrSides& sides) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  core::Carver carver(call.schedule);
  const planning::GpuMatmulSchedule schedule = planning::carve_gpu_matmul_schedule(carver, shape);
  const BsrMatrix& matrix = sides.sparse.sparse;
  const Tensor& values = sides.values();
  const int rows = values.rank - 2, cols = values.rank - 1;
  const std::int64_t bytes = size_of(values.dtype);
  planning::bsr::Walk walk;
  if (!sides.whole())
    walk.lists = planning::walk_of(matrix, sides.swapped ? schedule.b : schedule.a);
  walk.blocks = static_cast<const char*>(values.data);
  walk.row_bytes = values.stride(sides.sparse.transposed ? cols : rows) * bytes;
  walk.depth_bytes = values.stride(sides.sparse.transposed ? rows : cols) * bytes;
  const int height = largest_part(sides.block_rows(), planning::bsr::kGroup);
  walk.height_shift = height == 64 ? 6 : height == 32 ? 5 : 4;
  walk.lines = static_cast<int>((sides.swapped ? shape.n : shape.m) / height);
  walk.cols = static_cast<int>(sides.swapped ? shape.m : shape.n);
  walk.steps = static_cast<int>((shape.k + planning::bsr::kLine - 1) / planning::bsr::kLine);
  walk.batches = static_cast<int>(shape.batch);
  walk.dense_batch_step = (sides.swapped ? shape.a.batch : shape.b.batch) > 1 ? 1 : 0;
  if (sides.whole())
    walk.pool_step = shape.b.batch > 1 ? 1 : 0;
  else if (values.rank == 4 && values.size(0) > 1)
    walk.pool_step = static_cast<int>(matrix.stored_blocks());
  walk.lines_per_block = sides.block_rows() / height;
  const int piece = largest_part(sides.block_depth(), planning::bsr::kLine);
  walk.slice_shift = piece == 64 ? 0 : piece == 32 ? 1 : 2;
  walk.pieces_per_block = sides.block_depth() / piece;
  // Positions in the pool are in units of 16 bytes; the largest number means "none".
  if (values.rank > 2) walk.block_step = bsr_step(values.stride(values.rank - 3) * bytes);
  walk.line_step = bsr_step(height * walk.row_bytes);
  walk.piece_step = bsr_step(piece * walk.depth_bytes);
  return walk;
}

}  // namespace tessera::cuda::product
