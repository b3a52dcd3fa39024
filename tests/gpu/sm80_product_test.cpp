#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/kernels/cuda/sm80/product/plan.hpp"
#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

// Products of one sparse side, and groups of rows, by the rows of sm80_product that fit into this
// GPU's shared memory: what tests/gpu/bsr_test.cpp leaves out.
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

// ---- groups of rows

/// Weights in blocks of `block`, 0: dense. `transposed`: stored as [n, k].
struct Weights {
  std::int64_t block_rows, block_cols;  // as stored
  std::int64_t n, k;
  bool transposed;
};
std::string text_of(const Weights& w) {
  return (w.block_rows == 0
              ? std::string("dense")
              : "blocks " + std::to_string(w.block_rows) + "x" + std::to_string(w.block_cols)) +
         " weights " + std::to_string(w.n) + " x " + std::to_string(w.k) +
         (w.transposed ? ", transposed" : "");
}

/// Weights of each group, with lists of their own. Lists end before what is stored for the longest
/// of them; what they do not name is NaN.
Operand weights_of(Products& p, const Weights& w, std::int64_t groups, DType dtype, DType index) {
  const std::int64_t rows = w.transposed ? w.n : w.k, cols = w.transposed ? w.k : w.n;
  Operand operand;
  if (w.block_rows == 0) {
    operand = p.matrix(dtype, {groups, rows, cols}, p.random().chance(0.5) ? 8 : 0);
    operand.transposed = w.transposed;
    return operand;
  }
  const std::int64_t down = rows / w.block_rows, across = cols / w.block_cols;
  std::vector<Pattern> patterns;
  std::int64_t stored = 1;
  for (std::int64_t g = 0; g < groups; ++g) {
    patterns.push_back(random_pattern(down, across, p.random(), g % 3 == 2 ? 0.1 : 0.5));
    stored = std::max(stored, patterns.back().stored());
  }
  BsrMatrix m;
  m.rows = rows;
  m.cols = cols;
  const Tensor values = p.matrix(dtype, {groups * stored, w.block_rows, w.block_cols});
  m.values = tensor(values.data, dtype, {groups, stored, w.block_rows, w.block_cols});
  std::vector<std::int64_t> offsets, indices;
  const std::int64_t each = w.block_rows * w.block_cols;
  for (std::int64_t g = 0; g < groups; ++g) {
    Pattern& pattern = patterns[static_cast<std::size_t>(g)];
    offsets.insert(offsets.end(), pattern.offsets.begin(), pattern.offsets.end());
    for (std::int64_t e = pattern.stored() * each; e < stored * each; ++e)
      store_from_float(values.data, dtype, g * stored * each + e,
                       std::numeric_limits<float>::quiet_NaN());
    pattern.indices.resize(static_cast<std::size_t>(stored));
    indices.insert(indices.end(), pattern.indices.begin(), pattern.indices.end());
  }
  m.row_offsets = p.list(index, {groups, down + 1}, offsets);
  m.col_indices = p.list(index, {groups, stored}, indices);
  operand = m;
  operand.transposed = w.transposed;
  return operand;
}

MatmulProblem experts_of(Products& p, const Weights& w, const std::vector<std::int64_t>& cuts,
                         std::int64_t total, DType dtype, DType out, DType index,
                         bool out_by_columns) {
  const auto groups = static_cast<std::int64_t>(cuts.size()) - 1;
  MatmulProblem problem;
  problem.a = p.matrix(dtype, {total, w.k}, p.random().chance(0.5) ? 8 : 0);
  problem.b = weights_of(p, w, groups, dtype, index);
  problem.out = out_by_columns ? swap_dims(p.matrix(out, {w.n, total}, 0, true), 0, 1)
                               : p.matrix(out, {total, w.n}, p.random().chance(0.3) ? 3 : 0, true);
  problem.group_offsets = p.list(index, {groups + 1}, cuts);
  return problem;
}

/// Offsets that begin anywhere: empty groups, groups of one token and of more than a tile has
/// columns, more groups than a warp has lanes.
std::vector<std::int64_t> cuts_of(int kind) {
  if (kind == 0) return {0, 0, 1, 1, 301, 303, 310, 310};
  if (kind == 1) return {0, 300};
  if (kind == 2) return {0, 0, 0, 7};
  std::vector<std::int64_t> cuts{0};
  for (int i = 1; i < 100; ++i) cuts.push_back(cuts.back() + (i % 40 == 7 ? 61 : i % 5));
  return cuts;
}

const Weights kWeights[] = {
    {0, 0, 128, 64, true},      {0, 0, 128, 64, false},    {0, 0, 208, 112, true},
    {0, 0, 208, 112, false},    {0, 0, 64, 192, true},     {0, 0, 96, 32, false},
    {0, 0, 16, 16, true},       {0, 0, 384, 320, true},    {16, 16, 144, 80, true},
    {16, 16, 144, 80, false},   {32, 64, 160, 128, true},  {32, 48, 192, 96, false},
    {64, 64, 192, 128, true},   {64, 64, 192, 128, false}, {128, 128, 256, 128, true},
    {128, 64, 128, 256, false}, {192, 64, 192, 128, true}, {48, 128, 144, 256, true},
};

TEST(GpuSm80Product, GroupsMatchTheOracle) {
  SKIP_WITHOUT_ROWS();
  int kind = 0;
  for (const Weights& w : kWeights)
    for (int cuts_kind = 0; cuts_kind < 4; ++cuts_kind)
      for (DType out : {DType::bf16, DType::f32}) {
        ++kind;
        Products p(static_cast<std::uint64_t>(kind), 40);
        const std::vector<std::int64_t> cuts = cuts_of(cuts_kind);
        const DType dtype = kind % 2 ? DType::bf16 : DType::f16;
        MatmulProblem problem =
            experts_of(p, w, cuts, cuts.back(), dtype, out == DType::f32 ? out : dtype,
                       kind % 3 ? DType::i32 : DType::i64, kind / 4 % 2 != 0);
        expect_right_by_each_row(p, problem, text_of(w) + ", offsets " + std::to_string(cuts_kind));
      }
}

/// The pitch of a single row says nothing: no other row may be addressed by it.
TEST(GpuSm80Product, OneTokenOfAnyPitch) {
  SKIP_WITHOUT_ROWS();
  std::uint64_t seed = 0;
  for (const Weights& w : {Weights{0, 0, 128, 64, true}, Weights{16, 16, 144, 80, true}})
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 1}, std::vector<std::int64_t>{0, 0, 1, 1}}) {
      Products p(++seed);
      MatmulProblem problem =
          experts_of(p, w, cuts, 1, DType::bf16, DType::bf16, DType::i32, false);
      problem.a.dense.strides[0] = w.k + 1;
      expect_right_by_each_row(p, problem, text_of(w) + ", one token");
    }
}

TEST(GpuSm80Product, GroupsWithEveryEpilogue) {
  SKIP_WITHOUT_ROWS();
  const Weights weights[] = {
      {0, 0, 160, 96, true}, {0, 0, 144, 96, false}, {32, 32, 160, 96, true}};
  for (const Weights& w : weights)
    for (int kind = 0; kind < 24; ++kind) {
      Products p(static_cast<std::uint64_t>(kind), 12);
      const std::vector<std::int64_t> cuts = cuts_of(kind % 3);
      const std::int64_t total = cuts.back(), groups = static_cast<std::int64_t>(cuts.size()) - 1;
      const DType out = kind % 3 == 0 ? DType::f32 : kind % 3 == 1 ? DType::bf16 : DType::f16;
      MatmulProblem problem =
          experts_of(p, w, cuts, total, DType::bf16, out, DType::i32, kind % 4 >= 2);
      Epilogue& e = problem.epilogue;
      e.activation = static_cast<Activation>(kind % 5);
      e.alpha = kind % 3 ? 0.5f : 1.0f;
      if (kind % 4 < 2) {
        e.beta = -0.75f;
        e.c = kind % 5 < 2 ? swap_dims(p.matrix(out, {w.n, total}), 0, 1)
                           : p.matrix(DType::f32, {total, w.n});
      }
      if (kind % 2 == 0) e.bias = p.matrix(DType::f32, {groups, w.n});  // one per group
      if (kind % 4 == 1) e.bias = tensor(p.matrix(DType::bf16, {1, w.n}).data, DType::bf16, {w.n});
      if (kind % 4 == 3) {  // one per token
        e.bias_axis = BiasAxis::row;
        e.bias = tensor(p.matrix(DType::f32, {1, total}).data, DType::f32, {total});
      }
      expect_right_by_each_row(p, problem, text_of(w) + ", epilogue " + std::to_string(kind));
    }
}

/// Rows before the first offset and from the last one on are zeros, whatever the epilogue says.
TEST(GpuSm80Product, RowsOfNoGroupAreZero) {
  SKIP_WITHOUT_ROWS();
  const std::vector<std::vector<std::int64_t>> lists = {
      {0, 100, 100, 300}, {7, 40, 150, 332}, {5, 5, 5, 5}, {0, 0, 0, 0}, {333, 333, 333, 333}};
  for (const auto& cuts : lists)
    for (const Weights& w : {Weights{0, 0, 144, 64, true}, Weights{32, 32, 160, 64, true}})
      for (bool by_columns : {false, true}) {
        Products p(5);
        MatmulProblem problem =
            experts_of(p, w, cuts, 333, DType::bf16, DType::bf16, DType::i32, by_columns);
        problem.epilogue.bias = p.matrix(DType::f32, {3, w.n});
        expect_right_by_each_row(p, problem, "rows of no group, " + text_of(w));
      }
}

/// With a depth of 0 every tile has only its end, and tiles without steps follow one another.
TEST(GpuSm80Product, GroupsWithoutDepthHaveTheirBias) {
  SKIP_WITHOUT_ROWS();
  Products p(6);
  const std::vector<std::int64_t> cuts = cuts_of(3);
  const auto groups = static_cast<std::int64_t>(cuts.size()) - 1;
  MatmulProblem problem = experts_of(p, {0, 0, 272, 0, true}, cuts, cuts.back(), DType::bf16,
                                     DType::f32, DType::i32, false);
  problem.epilogue.bias = p.matrix(DType::f32, {groups, 272});
  expect_right_by_each_row(p, problem, "no depth");
}

/// Invalid offsets never lead outside the tensors.
TEST(GpuSm80Product, HostileOffsetsOfGroups) {
  SKIP_WITHOUT_ROWS();
  constexpr std::int64_t kWide = std::int64_t{1} << 40;
  const std::vector<std::vector<std::int64_t>> lists = {{-5, 1 << 30, 3, -7},
                                                        {100, 50, 20, 0},
                                                        {0, 200, 100, 64},
                                                        {64, 64, 64, 64},
                                                        {-kWide, kWide, -kWide, kWide}};
  for (const Weights& w : {Weights{0, 0, 48, 64, true}, Weights{0, 0, 48, 64, false},
                           Weights{16, 16, 48, 64, true}, Weights{16, 32, 64, 64, false}})
    for (const auto& cuts : lists)
      for (DType index : {DType::i32, DType::i64}) {
        if (index == DType::i32 && cuts.front() == -kWide) continue;
        Products p(8);
        const MatmulProblem problem =
            experts_of(p, w, cuts, 64, DType::bf16, DType::bf16, index, false);
        for (int row : rows_that_fit()) {
          const std::vector<std::byte> copy =
              p.run(problem, [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
          p.expect_untouched_outside(problem.out, copy, "hostile offsets, " + text_of(w));
        }
      }
}

/// NaN in the tokens of one group, and in its weights, reaches no other group.
TEST(GpuSm80Product, NaNStaysInItsGroup) {
  SKIP_WITHOUT_ROWS();
  const std::vector<std::int64_t> cuts = {0, 3, 3, 20, 61, 62, 350, 357};
  for (const Weights& w :
       {Weights{0, 0, 144, 80, true}, Weights{0, 0, 144, 80, false}, Weights{0, 0, 128, 64, true},
        Weights{16, 16, 144, 80, true}, Weights{64, 64, 192, 128, false}})
    for (std::size_t bad : {0, 2, 3, 5}) {
      Products p(9);
      MatmulProblem problem =
          experts_of(p, w, cuts, cuts.back(), DType::bf16, DType::f32, DType::i32, false);
      const Tensor& tokens = problem.a.dense;
      for (std::int64_t i = cuts[bad]; i < cuts[bad + 1]; ++i)
        for (std::int64_t d = 0; d < w.k; ++d)
          store_from_float(tokens.data, DType::bf16, i * tokens.stride(0) + d,
                           std::numeric_limits<float>::quiet_NaN());
      const Tensor& values = problem.b.is_sparse() ? problem.b.sparse.values : problem.b.dense;
      for (std::int64_t e = 0; e < values.stride(0); ++e)
        store_from_float(values.data, DType::bf16,
                         static_cast<std::int64_t>(bad) * values.stride(0) + e,
                         std::numeric_limits<float>::quiet_NaN());
      for (int row : rows_that_fit()) {
        std::vector<std::byte> copy =
            p.run(problem, [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
        const Tensor out = p.twin().inside(problem.out, copy);
        for (std::int64_t i = 0; i < out.size(0); ++i)
          for (std::int64_t j = 0; j < out.size(1); ++j) {
            const float x = static_cast<const float*>(out.data)[i * out.stride(0) + j];
            const bool here = i >= cuts[bad] && i < cuts[bad + 1];
            // A sparse row of the group may have no block.
            ASSERT_TRUE(here ? x != x || x == 0 : x == x)
                << text_of(w) << " row " << i << " column " << j << " " << x;
          }
      }
    }
}

/// More tiles than SMs, and more groups than 32, in one call; the same bits every time.
TEST(GpuSm80Product, ManyTilesOfGroups) {
  SKIP_WITHOUT_ROWS();
  for (const Weights& w : {Weights{0, 0, 640, 64, true}, Weights{64, 32, 640, 64, true}}) {
    std::string first;
    for (int run = 0; run < 3; ++run) {
      Products p(10, 48);
      std::vector<std::int64_t> cuts{0};
      for (int g = 0; g < 150; ++g)
        cuts.push_back(cuts.back() + (g % 50 == 49 ? 530 : g % 4 == 0 ? 0 : g % 30));
      const MatmulProblem problem =
          experts_of(p, w, cuts, cuts.back(), DType::bf16, DType::bf16, DType::i32, false);
      std::string bytes;
      if (run == 0) {
        first = expect_right_by_each_row(p, problem, "many tiles of groups, " + text_of(w));
        continue;
      }
      for (int row : rows_that_fit())
        bytes += Products::text_of(
            p.run(problem, [&](const MatmulProblem& device) { gpu_test::run_by(row, device); }));
      EXPECT_EQ(bytes, first);
    }
  }
}

}  // namespace
}  // namespace tessera
