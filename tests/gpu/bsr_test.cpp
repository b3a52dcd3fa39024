#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

// Products of one sparse and one dense side, by each row of sm90_bsr, of sm80_product and, where
// the sparse side is walked as it is stored, of sm80_bsr, whatever the cost model would choose.
namespace tessera {
namespace {

using generate::Random;
using gpu_test::Products;

struct Blocks {
  std::int64_t rows, cols;
};

/// The rows that support a problem: sm80_bsr walks the sparse side only as it is stored.
std::vector<int> rows_for(const MatmulProblem& problem) {
  std::vector<int> rows = gpu_test::rows_of("sm90_bsr");
  for (int row : gpu_test::rows_of("sm80_product")) rows.push_back(row);
  if (problem.a.is_sparse() ? !problem.a.transposed : problem.b.transposed)
    for (int row : gpu_test::rows_of("sm80_bsr")) rows.push_back(row);
  return rows;
}

/// Runs a problem by each row and compares with the oracle. Returns the bytes of all runs.
std::string expect_right_by_each_row(Products& p, const MatmulProblem& problem,
                                     const std::string& text) {
  std::string bytes;
  for (int row : rows_for(problem))
    bytes += p.expect_right(problem, text + " by " + gpu_test::name_of(row),
                            [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
  return bytes;
}
constexpr Blocks kBlocks[] = {{16, 16}, {32, 32},  {64, 64},  {128, 128}, {16, 64},
                              {64, 16}, {32, 16},  {48, 80},  {16, 128},  {128, 32},
                              {96, 64}, {256, 48}, {192, 192}};

/// Row 1 is full, row 2 empty.
Pattern with_gaps(std::int64_t rows, std::int64_t cols, Random& random, double density) {
  Pattern pattern{rows, cols, {0}, {}};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      if (i == 1 || (i != 2 && random.chance(density))) pattern.indices.push_back(j);
    pattern.offsets.push_back(pattern.stored());
  }
  return pattern;
}

enum class Side { a, a_transposed, b, b_transposed };
constexpr Side kSides[] = {Side::a, Side::a_transposed, Side::b, Side::b_transposed};

std::string text_of(const Blocks& block, Side side, std::int64_t length, DType dtype) {
  const char* const names[] = {"A", "A^T", "B", "B^T"};
  return std::string(to_string(dtype)) + " blocks " + std::to_string(block.rows) + "x" +
         std::to_string(block.cols) + " as " + names[static_cast<int>(side)] + ", other side " +
         std::to_string(length);
}

/// The sparse matrix on the given side; the dense side has `length` rows or columns of its own.
MatmulProblem problem_of(Products& p, const BsrMatrix& sparse, Side side, std::int64_t length,
                         bool turned, DType dtype) {
  MatmulProblem problem;
  const bool transposed = side == Side::a_transposed || side == Side::b_transposed;
  Operand operand = sparse;
  operand.transposed = transposed;
  const std::int64_t rows = transposed ? sparse.cols : sparse.rows;
  const std::int64_t cols = transposed ? sparse.rows : sparse.cols;
  if (side == Side::a || side == Side::a_transposed) {
    problem.a = operand;
    problem.b = turned ? p.matrix(dtype, {length, cols}) : p.matrix(dtype, {cols, length});
    problem.b.transposed = turned;
    problem.out = p.matrix(dtype, {rows, length}, 0, true);
  } else {
    problem.b = operand;
    problem.a = turned ? p.matrix(dtype, {rows, length}) : p.matrix(dtype, {length, rows});
    problem.a.transposed = turned;
    problem.out = p.matrix(dtype, {length, cols}, 0, true);
  }
  return problem;
}

TEST(GpuBsr, EveryBlockEverySide) {
  SKIP_UNLESS_HOPPER();
  for (DType dtype : {DType::bf16, DType::f16})
    for (const Blocks& block : kBlocks)
      for (Side side : kSides)
        for (std::int64_t length : {15, 200})
          for (bool turned : {false, true}) {
            const std::int64_t rows = 3 + 300 / block.rows, cols = 2 + 200 / block.cols;
            Products p(static_cast<std::uint64_t>(block.rows + block.cols + length));
            const BsrMatrix sparse =
                p.bsr(dtype, with_gaps(rows, cols, p.random(), 0.3), block.rows, block.cols,
                      turned ? DType::i64 : DType::i32);
            expect_right_by_each_row(p, problem_of(p, sparse, side, length, turned, dtype),
                                     text_of(block, side, length, dtype));
          }
}

TEST(GpuBsr, FewColumns) {
  SKIP_UNLESS_HOPPER();
  for (const Blocks& block : {Blocks{16, 16}, {32, 64}, {64, 64}, {128, 48}})
    for (Side side : kSides)
      for (std::int64_t length : {1, 8, 50, 64, 204}) {
        Products p(static_cast<std::uint64_t>(block.cols + length));
        const BsrMatrix sparse = p.bsr(DType::bf16, with_gaps(12, 11, p.random(), 0.3), block.rows,
                                       block.cols, DType::i32);
        expect_right_by_each_row(p, problem_of(p, sparse, side, length, false, DType::bf16),
                                 text_of(block, side, length, DType::bf16));
      }
}

/// Thread blocks whose strips lie in several rows of blocks: lists of about the same length, which
/// are walked side by side, and lists of very different lengths, which are walked one by one.
TEST(GpuBsr, ManyColumns) {
  SKIP_UNLESS_HOPPER();
  for (const Blocks& block : {Blocks{16, 16}, {48, 16}})
    for (bool skewed : {false, true})
      for (Side side : {Side::a, Side::b_transposed})
        for (std::int64_t length : {915, 960}) {
          if (skewed && (block.rows > 16 || length > 915)) continue;  // the oracle takes seconds
          Products p(static_cast<std::uint64_t>(block.rows + length), 16);
          // 41 strips for blocks of 16 rows, two per thread block: the last one has a single strip.
          const std::int64_t rows = 41 * 16 / block.rows, cols = skewed ? 120 : 12;
          Pattern pattern{rows, cols, {0}, {}};
          for (std::int64_t i = 0; i < rows; ++i) {
            const std::int64_t stored = i == 0 ? 1 : !skewed ? 5 : i % 9 == 4 ? cols : i % 3;
            for (std::int64_t j = 0; j < stored; ++j) pattern.indices.push_back((i * 7 + j) % cols);
            std::sort(pattern.indices.end() - stored, pattern.indices.end());
            pattern.offsets.push_back(pattern.stored());
          }
          const BsrMatrix sparse = p.bsr(DType::bf16, pattern, block.rows, block.cols, DType::i32);
          expect_right_by_each_row(p, problem_of(p, sparse, side, length, false, DType::bf16),
                                   text_of(block, side, length, DType::bf16));
        }
}

TEST(GpuBsr, EpiloguesAndOutputTypes) {
  SKIP_UNLESS_HOPPER();
  for (DType out : {DType::bf16, DType::f16, DType::f32})
    for (Side side : kSides)
      for (int kind = 0; kind < 2; ++kind) {
        Products p(11);
        const BsrMatrix sparse =
            p.bsr(DType::bf16, with_gaps(9, 9, p.random(), 0.4), 32, 32, DType::i32);
        MatmulProblem problem = problem_of(p, sparse, side, 120, false, DType::bf16);
        const std::int64_t m = problem.out.size(0), n = problem.out.size(1);
        problem.out = p.matrix(out, {m, n}, 0, true);
        Epilogue& e = problem.epilogue;
        e.alpha = 0.5f;
        e.activation = Activation::silu;
        e.bias_axis = kind == 0 ? BiasAxis::column : BiasAxis::row;
        const std::int64_t length = kind == 0 ? n : m;
        e.bias = tensor(p.matrix(DType::bf16, {1, length}).data, DType::bf16, {length});
        if (kind == 1) {
          e.beta = 2.0f;
          e.c = p.matrix(DType::bf16, {m, n});
        }
        expect_right_by_each_row(p, problem, text_of({32, 32}, side, 120, out));
      }
}

TEST(GpuBsr, NothingStored) {
  SKIP_UNLESS_HOPPER();
  for (Side side : kSides) {
    Products p(3);
    const BsrMatrix sparse =
        p.bsr(DType::bf16, Pattern{5, 7, {0, 0, 0, 0, 0, 0}, {}}, 32, 32, DType::i32);
    expect_right_by_each_row(p, problem_of(p, sparse, side, 72, false, DType::bf16), "no blocks");
  }
}

/// Empty tiles between others, many per thread block, and an epilogue of different duration per
/// warp.
TEST(GpuBsr, EmptyTilesBetweenOthers) {
  SKIP_UNLESS_HOPPER();
  for (bool none : {true, false}) {
    Products p(5, 16);
    Pattern pattern{96, 8, {0}, {}};
    for (std::int64_t i = 0; i < pattern.rows; ++i) {
      for (std::int64_t j = 0; j < pattern.cols; ++j)
        if (!none && i / 8 % 2 == 0) pattern.indices.push_back(j);
      pattern.offsets.push_back(pattern.stored());
    }
    const BsrMatrix sparse = p.bsr(DType::bf16, pattern, 32, 32, DType::i32);
    MatmulProblem problem = problem_of(p, sparse, Side::a, 1030, false, DType::bf16);
    problem.out = p.matrix(DType::bf16, {96 * 32, 1030}, 3);
    problem.epilogue.beta = 1.0f;
    expect_right_by_each_row(p, problem, none ? "no blocks" : "every other tile");
  }
}

/// Invalid lists never lead outside the tensors. Blocks that no valid entry names hold NaN.
TEST(GpuBsr, HostileLists) {
  SKIP_UNLESS_HOPPER();
  for (DType index : {DType::i32, DType::i64})
    for (const Pattern& pattern : Products::hostile_patterns(index))
      for (const Blocks& block : {Blocks{16, 16}, {32, 64}, {64, 32}, {64, 64}, {128, 48}})
        for (Side side : kSides) {
          Products p(21);
          const auto sparse = p.hostile(DType::bf16, index, pattern, block.rows, block.cols);
          const MatmulProblem problem = problem_of(p, sparse.as_read, side, 40, false, DType::bf16);
          MatmulProblem given = problem;
          (side == Side::a || side == Side::a_transposed ? given.a : given.b).sparse =
              sparse.as_given;
          for (int row : rows_for(problem)) {
            p.expect_right(problem,
                           text_of(block, side, 40, DType::bf16) + " by " + gpu_test::name_of(row),
                           [&](const MatmulProblem&) { gpu_test::run_by(row, p.moved(given)); });
          }
        }
}

/// Unsorted lists may lose blocks, but the kernel writes only to the result.
TEST(GpuBsr, ListsOutOfOrder) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t each : {16, 64}) {
    Products p(22, 12);
    const std::int64_t rows = 20, cols = 70;
    BsrMatrix sparse =
        p.bsr(DType::bf16, with_gaps(rows, cols, p.random(), 0.5), each, each, DType::i32);
    auto* const columns = static_cast<std::int32_t*>(sparse.col_indices.data);
    const auto* const offsets = static_cast<const std::int32_t*>(sparse.row_offsets.data);
    for (std::int64_t row = 0; row < rows; ++row)
      std::reverse(columns + offsets[row], columns + offsets[row + 1]);
    const MatmulProblem problem = problem_of(p, sparse, Side::a, 100, false, DType::bf16);
    p.twin().upload();
    for (int row : rows_for(problem)) gpu_test::run_by(row, p.moved(problem));
    p.expect_untouched_outside(problem.out, p.twin().download(), "out of order");
    for (int row : gpu_test::rows_of("sm80_bsr"))  // sorted or not
      p.expect_right(problem, "out of order by " + gpu_test::name_of(row),
                     [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
  }
}

/// Batches with lists and blocks of their own, or shared ones.
TEST(GpuBsr, Batches) {
  SKIP_UNLESS_HOPPER();
  constexpr std::int64_t kBatch = 3;
  for (const Blocks& block : {Blocks{16, 32}, {64, 64}})
    for (bool own_lists : {false, true})
      for (bool own_blocks : {false, true})
        for (Side side : kSides) {
          if (own_lists && !own_blocks) continue;
          Products p(23, 12);
          const Pattern pattern = with_gaps(7, 9, p.random(), 0.4);
          BsrMatrix sparse = p.bsr(DType::bf16, pattern, block.rows, block.cols, DType::i32);
          const std::int64_t stored = pattern.stored(), each = block.rows * block.cols;
          if (own_blocks) {
            const Tensor all = p.matrix(DType::bf16, {kBatch * stored, each});
            sparse.values = tensor(all.data, DType::bf16, {kBatch, stored, block.rows, block.cols});
          }
          if (own_lists) {
            std::vector<std::int64_t> offsets, columns;
            for (std::int64_t b = 0; b < kBatch; ++b) {
              offsets.insert(offsets.end(), pattern.offsets.begin(), pattern.offsets.end());
              columns.insert(columns.end(), pattern.indices.begin(), pattern.indices.end());
              if (b == 1) offsets.back() = offsets[offsets.size() - 2];  // its last row is empty
            }
            sparse.row_offsets = p.list(DType::i32, {kBatch, 8}, offsets);
            sparse.col_indices = p.list(DType::i32, {kBatch, stored}, columns);
          }
          MatmulProblem problem;
          const bool left = side == Side::a || side == Side::a_transposed;
          Operand operand = sparse;
          operand.transposed = side == Side::a_transposed || side == Side::b_transposed;
          const std::int64_t rows = operand.transposed ? sparse.cols : sparse.rows;
          const std::int64_t cols = operand.transposed ? sparse.rows : sparse.cols;
          (left ? problem.a : problem.b) = operand;
          (left ? problem.b : problem.a) = left ? p.matrix(DType::bf16, {kBatch, cols, 40})
                                                : p.matrix(DType::bf16, {kBatch, 40, rows});
          problem.out = left ? p.matrix(DType::f32, {kBatch, rows, 40}, 4, true)
                             : p.matrix(DType::f32, {kBatch, 40, cols}, 4, true);
          expect_right_by_each_row(p, problem,
                                   text_of(block, side, 40, DType::bf16) +
                                       (own_lists ? ", own lists" : "") +
                                       (own_blocks ? ", own blocks" : ""));
        }
}

TEST(GpuBsr, ManyStoredElements) {
  SKIP_UNLESS_HOPPER();
  gpu_test::expect_many_stored_elements("sm90_bsr");
}

TEST(GpuBsr, ManyStoredElementsOnEveryGpu) {
  SKIP_UNLESS_HOPPER();
  gpu_test::expect_many_stored_elements("sm80_product");
}

TEST(GpuBsr, ManyStoredElementsBesideFewColumns) {
  SKIP_UNLESS_HOPPER();
  gpu_test::expect_many_stored_elements("sm80_bsr");
}

/// sm80_bsr: odd pitches and addresses, negative strides, one column for all, a vector, rows that
/// begin at multiples of 4 bytes.
TEST(GpuBsr, ADenseSideOfAnyStrides) {
  SKIP_UNLESS_HOPPER();
  for (int kind = 0; kind < 6; ++kind) {
    Products p(31);
    const BsrMatrix w = p.bsr(DType::bf16, with_gaps(7, 6, p.random(), 0.4), 32, 48, DType::i64);
    MatmulProblem x = problem_of(p, w, Side::a, 19, false, DType::bf16);
    const Tensor large = p.matrix(DType::bf16, {288, 64});
    auto* const at = static_cast<std::uint16_t*>(large.data);
    if (kind == 0) x.b = tensor(at + 1, DType::bf16, {288, 19}, {61, 3});
    if (kind == 1) x.b = tensor(at + 287 * 64 + 18, DType::bf16, {288, 19}, {-64, -1});
    if (kind == 2) x.b = tensor(at, DType::bf16, {288, 19}, {64, 0});
    if (kind == 3 || kind == 4) {
      x.b = tensor(at, DType::bf16, {288, 1}, {kind == 3 ? 1 : 64, 1});
      x.out = p.matrix(DType::f32, {224, 1}, 0, true);
    }
    if (kind == 5) {
      x.b = tensor(at + 2, DType::bf16, {288, 24}, {64, 1});
      x.out = p.matrix(DType::f32, {224, 24}, 0, true);
    }
    for (int row : gpu_test::rows_of("sm80_bsr"))
      p.expect_right(x, gpu_test::name_of(row) + " kind " + std::to_string(kind),
                     [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
  }
}

TEST(GpuBsr, SameBitsEveryTime) {
  SKIP_UNLESS_HOPPER();
  for (Side side : {Side::a, Side::b}) {
    std::string first;
    for (int run = 0; run < 5; ++run) {
      Products p(4);
      const BsrMatrix sparse =
          p.bsr(DType::bf16, with_gaps(30, 30, p.random(), 0.3), 16, 16, DType::i32);
      const std::string bytes = expect_right_by_each_row(
          p, problem_of(p, sparse, side, 520, false, DType::bf16), "repeat");
      if (run == 0) first = bytes;
      EXPECT_EQ(bytes, first);
    }
  }
}

}  // namespace
}  // namespace tessera
