#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/kernels/cpu/block_lists.hpp"
#include "src/kernels/cpu/layout.hpp"
#include "src/kernels/cpu/product_tile.hpp"
#include "src/kernels/row.hpp"

// Shared by products: views of their operands, packing in passes, buffers.
namespace tessera::cpu {

/// One batch of a dense tensor [rows, cols] or [batch, rows, cols], transposed if requested.
MatrixView dense_view(const Tensor& tensor, bool transposed, std::int64_t batch);
/// One batch of a dense operand, as the product reads it, with its factors.
MatrixView dense_view(const Operand& operand, std::int64_t batch);
/// The factors of the stored blocks of a BSR operand, stacked as `pool_view` stacks them.
ScaleView pool_factors(const Operand& operand, std::int64_t block_rows, std::int64_t batch);
/// The stored blocks of a BSR matrix, stacked: row p * block + r is row r of stored block p. With
/// `transposed`, each block is transposed (and `block` is the stored blocks' number of columns).
MatrixView pool_view(const BsrMatrix& matrix, bool transposed, std::int64_t batch);
/// Elements from one stored block to the next.
inline std::int64_t pool_stride(const BsrMatrix& matrix) {
  return matrix.values.stride(matrix.values.rank - 3);
}

/// The output of one stored block, which is also its c if beta is not 0. `element`: where the block
/// begins among the values.
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

    /// Selects strips [begin, end) of a right operand; returns their width in floats.
    std::int64_t take_strips(const PackedRight& right, int begin, int end);
  };
  Thread& thread(int index) { return per_thread_[static_cast<std::size_t>(index)]; }

  /// Strips per tile.
  int strips_per_tile() const {
    return std::max(1, tile_.n / static_cast<int>(planning::kMaxStrip));
  }
  /// Columns of a right operand with `rows` rows that fit into the packing buffer: whole strips, at
  /// least one.
  std::int64_t columns_per_pass(std::int64_t rows) const {
    const std::int64_t strips =
        packed_floats_ / std::max<std::int64_t>(rows, 1) / planning::kMaxStrip;
    return std::max<std::int64_t>(strips, 1) * planning::kMaxStrip;
  }

  /// Computes the sum of the thread's terms over its strips, into its scratch.c with pitch `c_row`.
  void multiply(Thread& thread, const MatrixView& left, int rows, std::int64_t c_row) const {
    multiply_tile(isa_, left, rows, thread.terms, thread.strips, thread.scratch.c, c_row,
                  thread.scratch, tile_.k, thread.segments);
  }
  /// The same for strips [begin, end) of a right operand of `cols` columns; stores the result.
  /// `to`: the output of the operand's column 0.
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
