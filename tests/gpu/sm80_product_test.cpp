#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/kernels/cuda/sm80/product/plan.hpp"
#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

// Products of one sparse side by the rows of sm80_product that fit into this GPU's shared memory:
// what tests/gpu/bsr_test.cpp leaves out.
namespace tessera {
namespace {

using generate::Random;
using gpu_test::Products;

std::vector<int> rows_that_fit() {
  const std::int64_t bytes = device_facts({DeviceKind::cuda, 0}).shared_bytes_per_block;
  std::vector<int> rows;
  for (int row : gpu_test::rows_of("sm80_product"))
    if (planning::sm80_product_shared_bytes(gpu_test::row_at(row).tile) <= bytes)
      rows.push_back(row);
  return rows;
}

#define SKIP_WITHOUT_ROWS()                                                                   \
  if (device_facts({DeviceKind::cuda, 0}).compute_capability < 80 || rows_that_fit().empty()) \
  GTEST_SKIP() << "needs compute capability 8.0 and 99 KiB of shared memory"

/// Runs a problem by each row and compares with the oracle. Returns the bytes of all runs.
std::string expect_right_by_each_row(Products& p, const MatmulProblem& problem,
                                     const std::string& text) {
  std::string bytes;
  for (int row : rows_that_fit())
    bytes += p.expect_right(problem, text + " by " + gpu_test::name_of(row),
                            [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
  return bytes;
}

Pattern random_pattern(std::int64_t rows, std::int64_t cols, Random& random, double density) {
  Pattern pattern{rows, cols, {0}, {}};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      if (random.chance(density)) pattern.indices.push_back(j);
    pattern.offsets.push_back(pattern.stored());
  }
  return pattern;
}

struct Case {
  std::int64_t block_rows, block_cols, rows, cols;  // of blocks
};

/// The sparse side is op(a), or op(b) where `right`; both sides and the result in either order.
MatmulProblem problem_of(Products& p, const BsrMatrix& sparse, std::int64_t length, bool right,
                         bool transposed, bool dense_transposed, bool out_by_columns, DType dtype,
                         DType out) {
  MatmulProblem problem;
  Operand operand = sparse;
  operand.transposed = transposed;
  const std::int64_t rows = transposed ? sparse.cols : sparse.rows;
  const std::int64_t cols = transposed ? sparse.rows : sparse.cols;
  const std::int64_t depth = right ? rows : cols;
  const std::int64_t m = right ? length : rows, n = right ? cols : length;
  const std::int64_t lines = right != dense_transposed ? length : depth;
  Operand dense = p.matrix(dtype, {lines, lines == length ? depth : length});
  if (depth == length) dense = p.matrix(dtype, {depth, depth});
  dense.transposed = dense_transposed;
  (right ? problem.b : problem.a) = operand;
  (right ? problem.a : problem.b) = dense;
  problem.out = out_by_columns ? swap_dims(p.matrix(out, {n, m}, 0, true), 0, 1)
                               : p.matrix(out, {m, n}, 3, true);
  return problem;
}

TEST(GpuSm80Product, EdgesOfColumnsInEveryOrder) {
  SKIP_WITHOUT_ROWS();
  const Case cases[] = {{16, 16, 19, 21}, {16, 48, 11, 5}, {32, 64, 7, 6},
                        {96, 32, 4, 9},   {64, 64, 5, 7},  {128, 128, 3, 4},
                        {128, 64, 2, 5},  {192, 64, 2, 3}, {48, 128, 6, 3}};
  int kind = 0;
  for (const Case& c : cases)
    for (std::int64_t length : {1, 7, 8, 31, 33, 255, 256, 257})
      for (int order = 0; order < 8; ++order) {
        ++kind;
        Products p(static_cast<std::uint64_t>(kind));
        const DType dtype = kind % 2 ? DType::bf16 : DType::f16;
        const BsrMatrix sparse =
            p.bsr(dtype, random_pattern(c.rows, c.cols, p.random(), kind % 3 ? 0.3 : 0.7),
                  c.block_rows, c.block_cols, kind % 5 ? DType::i32 : DType::i64);
        const DType out = kind % 4 == 3 ? DType::f32 : dtype;
        const MatmulProblem problem =
            problem_of(p, sparse, length, (order & 1) != 0, (order & 2) != 0, (order & 4) != 0,
                       kind / 8 % 2 != 0, dtype, out);
        expect_right_by_each_row(p, problem,
                                 "blocks " + std::to_string(c.block_rows) + "x" +
                                     std::to_string(c.block_cols) + ", " + std::to_string(length) +
                                     " columns, order " + std::to_string(order));
      }
}

/// More windows than one per tile, more than 32 entries per window, and several tiles per thread
/// block.
TEST(GpuSm80Product, LongListsAndManyTiles) {
  SKIP_WITHOUT_ROWS();
  for (const Case& c : {Case{16, 16, 9, 300}, Case{32, 32, 5, 150}, Case{64, 64, 3, 140}})
    for (bool transposed : {false, true})
      for (double density : {0.02, 0.9}) {
        Products p(7, 16);
        const BsrMatrix sparse =
            transposed ? p.bsr(DType::bf16, random_pattern(c.cols, c.rows, p.random(), density),
                               c.block_cols, c.block_rows, DType::i32)
                       : p.bsr(DType::bf16, random_pattern(c.rows, c.cols, p.random(), density),
                               c.block_rows, c.block_cols, DType::i32);
        expect_right_by_each_row(
            p, problem_of(p, sparse, 40, false, transposed, false, false, DType::bf16, DType::f32),
            "long lists, density " + std::to_string(density));
      }
  Products p(8, 24);
  const BsrMatrix sparse =
      p.bsr(DType::bf16, random_pattern(500, 3, p.random(), 0.3), 64, 32, DType::i32);
  MatmulProblem problem =
      problem_of(p, sparse, 130, false, false, false, false, DType::bf16, DType::bf16);
  problem.epilogue.beta = 0;
  expect_right_by_each_row(p, problem, "many tiles");
}

/// NaN in rows of the dense side reaches only the rows of the result whose blocks name them.
TEST(GpuSm80Product, NaNOppositeAbsentBlocks) {
  SKIP_WITHOUT_ROWS();
  for (const Case& c : {Case{16, 16, 16, 8}, Case{32, 32, 8, 6}, Case{32, 64, 8, 4},
                        Case{64, 64, 6, 4}, Case{128, 64, 3, 4}})
    for (bool dense_transposed : {false, true}) {
      Products p(9);
      Pattern pattern{c.rows, c.cols, {0}, {}};
      for (std::int64_t i = 0; i < c.rows; ++i) {
        for (std::int64_t j = 0; j < c.cols; ++j)
          if (j != 1 && p.random().chance(0.5)) pattern.indices.push_back(j);
        if (i == 1) {  // the only row that names column 1
          const auto begin = pattern.indices.begin() + pattern.offsets.back();
          pattern.indices.erase(begin, pattern.indices.end());
          pattern.indices.push_back(1);
        }
        pattern.offsets.push_back(pattern.stored());
      }
      const BsrMatrix sparse = p.bsr(DType::bf16, pattern, c.block_rows, c.block_cols, DType::i32);
      const MatmulProblem problem =
          problem_of(p, sparse, 72, false, false, dense_transposed, false, DType::bf16, DType::f32);
      const Tensor& dense = problem.b.dense;
      for (std::int64_t d = c.block_cols; d < 2 * c.block_cols; ++d)
        for (std::int64_t col = 0; col < 72; ++col)
          store_from_float(dense.data, DType::bf16,
                           dense_transposed ? col * dense.stride(0) + d : d * dense.stride(0) + col,
                           std::numeric_limits<float>::quiet_NaN());
      for (int row : rows_that_fit()) {
        std::vector<std::byte> copy =
            p.run(problem, [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
        const Tensor out = p.twin().inside(problem.out, copy);
        for (std::int64_t i = 0; i < out.size(0); ++i)
          for (std::int64_t j = 0; j < out.size(1); ++j) {
            const float x = static_cast<const float*>(out.data)[i * out.stride(0) + j];
            ASSERT_EQ(x != x, i / c.block_rows == 1)
                << gpu_test::name_of(row) << " blocks " << c.block_rows << "x" << c.block_cols
                << " row " << i << " column " << j;
          }
      }
    }
}

TEST(GpuSm80Product, EveryEpilogueInBothOrders) {
  SKIP_WITHOUT_ROWS();
  for (bool right : {false, true})
    for (int kind = 0; kind < 36; ++kind) {
      Products p(12);
      const BsrMatrix sparse =
          p.bsr(DType::bf16, random_pattern(9, 6, p.random(), 0.4), 48, 32, DType::i32);
      const DType out = kind % 3 == 0 ? DType::f32 : kind % 3 == 1 ? DType::bf16 : DType::f16;
      MatmulProblem problem = problem_of(p, sparse, kind % 2 ? 264 : 261, right, false, right,
                                         kind % 4 >= 2, DType::bf16, out);
      const std::int64_t m = problem.out.size(0), n = problem.out.size(1);
      Epilogue& e = problem.epilogue;
      e.activation = static_cast<Activation>(kind % 5);
      e.alpha = kind % 3 ? 0.5f : 1.0f;
      if (kind % 4 < 2) {
        e.beta = -0.75f;
        e.c = kind % 5 < 2 ? swap_dims(p.matrix(out, {n, m}), 0, 1) : p.matrix(DType::f32, {m, n});
      }
      if (kind % 3 < 2) {
        e.bias_axis = kind % 2 ? BiasAxis::row : BiasAxis::column;
        const std::int64_t length = kind % 2 ? m : n;
        e.bias = tensor(p.matrix(DType::f32, {1, length}).data, DType::f32, {length});
      }
      expect_right_by_each_row(p, problem, "epilogue " + std::to_string(kind));
    }
}

/// If a list names a block twice, the same one is chosen in every run.
TEST(GpuSm80Product, SameBitsEveryTimeAlsoWithDuplicates) {
  SKIP_WITHOUT_ROWS();
  for (bool duplicates : {false, true}) {
    std::string first;
    for (int run = 0; run < 5; ++run) {
      Products p(4);
      const BsrMatrix sparse =
          p.bsr(DType::bf16, random_pattern(30, 30, p.random(), 0.3), 16, 32, DType::i32);
      if (duplicates) {
        auto* const columns = static_cast<std::int32_t*>(sparse.col_indices.data);
        for (std::int64_t e = 1; e < sparse.col_indices.size(0); e += 3)
          if (columns[e] > columns[e - 1]) columns[e] = columns[e - 1];
      }
      const MatmulProblem problem =
          problem_of(p, sparse, 520, false, false, false, false, DType::bf16, DType::bf16);
      std::string bytes;
      for (int row : rows_that_fit())
        bytes += Products::text_of(
            p.run(problem, [&](const MatmulProblem& device) { gpu_test::run_by(row, device); }));
      if (run == 0) first = bytes;
      EXPECT_EQ(bytes, first);
    }
  }
}

}  // namespace
}  // namespace tessera
