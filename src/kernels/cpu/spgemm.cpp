#include <algorithm>
#include <vector>

#include "src/kernels/cpu/backend.hpp"
#include "src/kernels/cpu/parallel.hpp"
#include "src/kernels/cpu/product_setup.hpp"

namespace tessera::cpu {
namespace {

/// The lists of op(matrix) by row; owns transposed lists if they are needed.
class OwnedLists {
 public:
  OwnedLists(const Operand& operand) {
    const BsrMatrix& matrix = operand.sparse;
    if (!operand.transposed) {
      lists_ = lists_by_row(matrix, 0);
      return;
    }
    const std::int64_t cols = matrix.cols / matrix.block_cols();
    storage_.resize(static_cast<std::size_t>([&] {
      core::Carver sizing;
      planning::carve_lists(sizing, 1, cols, matrix.stored_blocks());
      return sizing.used();
    }() / static_cast<std::int64_t>(sizeof(std::int64_t))));
    core::Carver carver(storage_.data());
    const planning::ListBuffers buffers =
        planning::carve_lists(carver, 1, cols, matrix.stored_blocks());
    write_transposed_lists(matrix, buffers);
    lists_ = lists_by_column(buffers, matrix, 0);
  }
  const BlockLists& lists() const { return lists_; }

 private:
  std::vector<std::int64_t> storage_;
  BlockLists lists_;
};

planning::BlockShape op_block(const Operand& operand) {
  const BsrMatrix& m = operand.sparse;
  return operand.transposed ? planning::BlockShape{m.block_cols(), m.block_rows()}
                            : planning::BlockShape{m.block_rows(), m.block_cols()};
}

struct Pair {
  std::int64_t column, left, right;
};

/// All pairs of blocks that contribute to row `i` of the result, by column, then by inner index.
void pairs_of_row(const BlockLists& a, const BlockLists& b, std::int64_t i,
                  std::vector<Pair>& pairs) {
  pairs.clear();
  const planning::BsrRow left = a.line(i);
  for (std::int64_t e = left.begin; e < left.end; ++e) {
    const planning::BsrRow right = b.line(left.column(e));
    for (std::int64_t f = right.begin; f < right.end; ++f)
      pairs.push_back({right.column(f), a.position(e), b.position(f)});
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const Pair& x, const Pair& y) { return x.column < y.column; });
}

/// Lists the blocks of the result (those of `out` if given), and the pairs that each sums.
SpgemmPattern match_pairs(const SpgemmProblem& problem, const planning::SpgemmShape& shape,
                          const BsrMatrix* out) {
  SpgemmPattern pattern;
  const OwnedLists a(problem.a), b(problem.b);
  const std::int64_t rows = shape.m / op_block(problem.a).rows;
  pattern.offsets.push_back(0);
  pattern.pair_offsets.push_back(0);
  std::vector<Pair> pairs;
  std::vector<std::int64_t> wanted;
  for (std::int64_t i = 0; i < rows; ++i) {
    pairs_of_row(a.lists(), b.lists(), i, pairs);
    wanted.clear();
    if (out) {
      const planning::BsrRow row = lists_by_row(*out, 0).line(i);
      for (std::int64_t e = row.begin; e < row.end; ++e) wanted.push_back(row.column(e));
    } else {
      for (const Pair& pair : pairs)
        if (wanted.empty() || wanted.back() != pair.column) wanted.push_back(pair.column);
    }
    auto next = pairs.begin();
    for (const std::int64_t column : wanted) {
      while (next != pairs.end() && next->column < column) ++next;
      for (; next != pairs.end() && next->column == column; ++next) {
        pattern.left_blocks.push_back(next->left);
        pattern.right_blocks.push_back(next->right);
      }
      pattern.columns.push_back(column);
      pattern.pair_offsets.push_back(static_cast<std::int64_t>(pattern.left_blocks.size()));
    }
    pattern.offsets.push_back(static_cast<std::int64_t>(pattern.columns.size()));
  }
  return pattern;
}

}  // namespace

SpgemmPattern spgemm_symbolic(const SpgemmProblem& problem, const planning::SpgemmShape& shape) {
  return match_pairs(problem, shape, nullptr);
}

SpgemmPattern spgemm_sampled(const SpgemmProblem& problem, const planning::SpgemmShape& shape,
                             const BsrMatrix& out) {
  return match_pairs(problem, shape, &out);
}

void spgemm_numeric(const SpgemmProblem& problem, const planning::SpgemmShape& shape,
                    const SpgemmPattern& pattern, const BsrMatrix& out,
                    const Resources& resources) {
  const std::int64_t stored = static_cast<std::int64_t>(pattern.columns.size());
  if (stored == 0) return;
  ProductContext context(resources.row, resources.workspace, planning::pool_packed_floats(shape.b),
                         resources.threads);
  const Simd& isa = context.isa();
  const planning::BlockShape pool = planning::pool_shape(shape.b);
  const planning::BlockShape left_block = op_block(problem.a);
  const MatrixView left = pool_view(problem.a.sparse, problem.a.transposed, 0);
  const MatrixView right = pool_view(problem.b.sparse, problem.b.transposed, 0);
  const std::int64_t left_stride = pool_stride(problem.a.sparse);
  const std::int64_t slice = context.columns_per_pass(pool.rows);
  const int step = context.strips_per_tile();
  for (std::int64_t col = 0; col < pool.cols; col += slice) {
    const std::int64_t cols = std::min(slice, pool.cols - col);
    const PackedRight packed{context.packed(), pool.rows, Strips(cols, isa), isa.lanes};
    context.pack({{right, col, cols, packed}});
    parallel_for(context.threads(), stored, [&](int index, std::int64_t block) {
      ProductContext::Thread& thread = context.thread(index);
      for (std::int64_t skip = 0; skip < left_block.rows; skip += planning::kMaxTileRows) {
        const int rows = static_cast<int>(std::min(planning::kMaxTileRows, left_block.rows - skip));
        thread.terms.clear();
        const auto at = static_cast<std::size_t>(block);
        for (std::int64_t p = pattern.pair_offsets[at]; p < pattern.pair_offsets[at + 1]; ++p)
          thread.terms.push_back(
              {pattern.left_blocks[static_cast<std::size_t>(p)] * left_stride + skip * left.row,
               pattern.right_blocks[static_cast<std::size_t>(p)] * left_block.cols,
               left_block.cols});
        const TileOutput to =
            block_output(out, 0, block * pool_stride(out), problem.alpha, problem.beta);
        for (int s = 0; s < packed.strips.count; s += step)
          context.multiply_and_store(thread, left, rows, packed, s,
                                     std::min(s + step, packed.strips.count), cols,
                                     to.from(skip, col));
      }
    });
  }
}

}  // namespace tessera::cpu
