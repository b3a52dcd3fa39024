#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/kernels/cpu/block_lists.hpp"
#include "src/kernels/cpu/layout.hpp"
#include "src/kernels/cpu/product_tile.hpp"
#include "src/kernels/row.hpp"

// What products share: views of operands as the product sees them, packing in passes, and the
// buffers.
namespace tessera::cpu {

/// A batch's part of a dense tensor [rows, cols] or [batch, rows, cols], transposed where asked.
MatrixView dense_view(const Tensor& tensor, bool transposed, std::int64_t batch);
/// The stored blocks of a BSR matrix, one under the other: row p * block + r is row r of stored
/// block p. With `transposed` the blocks are read the other way round (and `block` is the stored
/// block's columns).
MatrixView pool_view(const BsrMatrix& matrix, bool transposed, std::int64_t batch);
/// Elements between one stored block and the next.
inline std::int64_t pool_stride(const BsrMatrix& matrix) {
  return matrix.values.stride(matrix.values.rank - 3);
}

/// Where a stored block's values go, and where they come from when beta keeps them. `element` is
/// where the block begins among the values.
TileOutput block_output(const BsrMatrix& out, std::int64_t batch, std::int64_t element, float alpha,
                        float beta);

/// Everything a product needs at run time besides its operands.
class ProductContext {
 public:
  ProductContext(const planning::KernelRow& row, void* workspace, std::int64_t packed_floats,
                 int threads);

  const Simd& isa() const { return isa_; }
  int threads() const { return threads_; }
  const planning::Tile& tile() const { return tile_; }
  float* packed() const { return packed_; }
  std::int64_t packed_capacity() const { return packed_floats_; }

  /// One thread's scratch and term list.
  struct Thread {
    ProductScratch scratch;
    std::vector<Term> terms, met;
    std::vector<Strip> strips;
    std::vector<Segment> segments;

    /// Walks strips [begin, end) of a right operand; returns their width in floats.
    std::int64_t take_strips(const PackedRight& right, int begin, int end);
  };
  Thread& thread(int index) { return per_thread_[static_cast<std::size_t>(index)]; }

  /// Strips that a tile holds.
  int strips_per_tile() const {
    return std::max(1, tile_.n / static_cast<int>(planning::kMaxStrip));
  }
  /// Columns of a right operand of `rows` rows that the packing buffer holds: whole strips, one at
  /// least.
  std::int64_t columns_per_pass(std::int64_t rows) const {
    const std::int64_t strips =
        packed_floats_ / std::max<std::int64_t>(rows, 1) / planning::kMaxStrip;
    return std::max<std::int64_t>(strips, 1) * planning::kMaxStrip;
  }

  /// The sum of the thread's terms over its strips, into its scratch.c with row pitch `c_row`.
  void multiply(Thread& thread, const MatrixView& left, int rows, std::int64_t c_row) const {
    multiply_tile(isa_, left, rows, thread.terms, thread.strips, thread.scratch.c, c_row,
                  thread.scratch, tile_.k, thread.segments);
  }
  /// The same over strips [begin, end) of a right operand of `cols` columns, stored at its place
  /// in `to`, where column 0 of the operand goes.
  void multiply_and_store(Thread& thread, const MatrixView& left, int rows,
                          const PackedRight& right, int begin, int end, std::int64_t cols,
                          const TileOutput& to) const;

  /// Packs a set of right operands, in parallel.
  struct PackJob {
    MatrixView source;
    std::int64_t first_col, cols;
    PackedRight right;
  };
  void pack(const std::vector<PackJob>& jobs) const;

 private:
  const Simd& isa_;
  planning::Tile tile_;
  int threads_;
  float* packed_;
  std::int64_t packed_floats_;
  std::vector<Thread> per_thread_;
};

}  // namespace tessera::cpu
