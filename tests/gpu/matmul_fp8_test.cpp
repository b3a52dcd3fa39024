// Products in FP8 by our own kernels: block-sparse, grouped and dense, with factors of every form,
// by each row that supports them.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

namespace tessera {
namespace {

using gpu_test::Products;

enum class Form { none, one, line, by_128, by_128x128, matrix, block };

/// Factors of a dense operand whose lines are rows of what is stored.
Tensor factors(Products& p, Form form, std::int64_t lines, std::int64_t depth,
               std::int64_t batch = 1) {
  const auto of = [&](std::int64_t rows, std::int64_t cols) {
    return batch > 1 ? p.matrix(DType::f32, {batch, rows, cols}, 3)
                     : p.matrix(DType::f32, {rows, cols}, 3);
  };
  const std::int64_t line_blocks = (lines + 127) / 128, blocks = (depth + 127) / 128;
  switch (form) {
    case Form::one:
      return tensor(p.matrix(DType::f32, {1, 1}).data, DType::f32, {1});
    case Form::matrix:
      return of(1, 1);
    case Form::line:
      return of(lines, 1);
    case Form::by_128:
      return of(lines, blocks);
    case Form::by_128x128:
      return of(line_blocks, blocks);
    default:
      return {};
  }
}

/// Rows of 16 bytes: a matrix [.., lines, depth] whose lines lie along the depth.
Tensor lines_of(Products& p, std::vector<std::int64_t> shape) {
  const std::int64_t depth = shape.back(), padded = (depth + 15) / 16 * 16;
  shape.back() = padded;
  Tensor t = p.matrix(DType::e4m3, shape, 16);
  t.shape[static_cast<std::size_t>(t.rank - 1)] = depth;
  return t;
}

void expect_right(Products& p, const MatmulProblem& problem, const std::string& text) {
  int ran = 0;
  for (const int row : gpu_test::rows_of("sm90_matmul")) {
    if (!(gpu_test::row_at(row).dtypes & core::dtypes({DType::e4m3}))) continue;
    const Execution by{.kernel = gpu_test::name_of(row)};
    try {
      plan(p.moved(problem), by);
    } catch (const Error&) {
      continue;  // the row does not support these blocks
    }
    ++ran;
    const std::string name = text + " by " + gpu_test::name_of(row);
    const auto call = [&](const MatmulProblem& device) { matmul(device, by); };
    const std::string once = p.expect_right(problem, name, call);
    EXPECT_TRUE(once == Products::text_of(p.run(problem, call))) << name << ": other bits";
  }
  EXPECT_GT(ran, 0) << text << ": no row supports this";
}

struct Blocks {
  std::int64_t rows, cols;
};

/// Lists with gaps: empty rows, one full row.
Pattern with_gaps(std::int64_t rows, std::int64_t cols, generate::Random& random, double density) {
  Pattern pattern{rows, cols, {0}, {}};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      if (i % 5 != 2 && (i == 1 || random.uniform() < density)) pattern.indices.push_back(j);
    pattern.offsets.push_back(pattern.stored());
  }
  return pattern;
}

/// x W^T (`right`) or W x^T with a block-sparse W.
MatmulProblem sparse_product(Products& p, const BsrMatrix& w, std::int64_t length, bool right,
                             Form dense, Form sparse, DType out) {
  MatmulProblem problem;
  Operand x = lines_of(p, {length, w.cols}), weights = w;
  x.scale = factors(p, dense, length, w.cols);
  if (sparse == Form::block)
    weights.scale =
        tensor(p.matrix(DType::f32, {1, std::max<std::int64_t>(w.stored_blocks(), 1)}).data,
               DType::f32, {w.stored_blocks()});
  if (sparse == Form::one) weights.scale = factors(p, Form::one, 1, 1);
  problem.a = right ? x : weights;
  problem.b = transpose(right ? weights : x);
  problem.out =
      right ? p.matrix(out, {length, w.rows}, 0, true) : p.matrix(out, {w.rows, length}, 0, true);
  return problem;
}

TEST(GpuMatmulFp8, SparseBlocksAndForms) {
  SKIP_UNLESS_HOPPER();
  for (const Blocks& block : {Blocks{128, 128}, {64, 64}, {64, 128}, {128, 64}, {192, 256}})
    for (const bool right : {true, false})
      for (const Form dense : {Form::none, Form::one, Form::line, Form::by_128, Form::by_128x128})
        for (const Form sparse : {Form::none, Form::one, Form::block}) {
          Products p(static_cast<std::uint64_t>(block.rows + block.cols));
          const BsrMatrix w = p.bsr(DType::e4m3, with_gaps(5, 3, p.random(), 0.4), block.rows,
                                    block.cols, DType::i32);
          expect_right(p, sparse_product(p, w, 77, right, dense, sparse, DType::bf16),
                       "blocks of " + std::to_string(block.rows) + " x " +
                           std::to_string(block.cols) + (right ? " right" : " left") + " forms " +
                           std::to_string(static_cast<int>(dense)) + " " +
                           std::to_string(static_cast<int>(sparse)));
          if (HasFailure()) return;
        }
}

TEST(GpuMatmulFp8, SparseEpiloguesAndOutputs) {
  SKIP_UNLESS_HOPPER();
  for (const DType out : {DType::bf16, DType::f16, DType::f32})
    for (const bool right : {true, false})
      for (const std::int64_t length : {1, 136, 201})
        for (const bool arithmetic : {false, true}) {
          Products p(static_cast<std::uint64_t>(length));
          const BsrMatrix w =
              p.bsr(DType::e4m3, with_gaps(5, 3, p.random(), 0.5), 64, 64, DType::i64);
          MatmulProblem problem =
              sparse_product(p, w, length, right, Form::by_128, Form::block, out);
          if (arithmetic) {
            Epilogue& e = problem.epilogue;
            const std::int64_t m = problem.out.size(0), n = problem.out.size(1);
            e.alpha = 0.5f, e.beta = 2.0f, e.activation = Activation::silu;
            e.c = p.matrix(DType::bf16, {m, n});
            e.bias = tensor(p.matrix(DType::f32, {1, n}).data, DType::f32, {n});
          }
          expect_right(p, problem,
                       std::string("out ") + to_string(out) + (right ? " right " : " left ") +
                           std::to_string(length) + (arithmetic ? " epilogue" : ""));
        }
}

TEST(GpuMatmulFp8, NothingStored) {
  SKIP_UNLESS_HOPPER();
  for (const bool right : {true, false}) {
    Products p(3);
    const BsrMatrix w =
        p.bsr(DType::e4m3, Pattern{5, 7, {0, 0, 0, 0, 0, 0}, {}}, 64, 64, DType::i32);
    expect_right(p, sparse_product(p, w, 72, right, Form::by_128, Form::one, DType::bf16),
                 "no blocks");
  }
}

/// Invalid lists never lead outside the tensors. Blocks that no valid entry names hold NaN.
TEST(GpuMatmulFp8, HostileLists) {
  SKIP_UNLESS_HOPPER();
  for (const DType index : {DType::i32, DType::i64})
    for (const Pattern& pattern : Products::hostile_patterns(index)) {
      Products p(9);
      const Products::Hostile lists = p.hostile(DType::e4m3, index, pattern, 64, 64);
      MatmulProblem problem =
          sparse_product(p, lists.as_read, 80, true, Form::by_128, Form::one, DType::bf16);
      for (const int row : gpu_test::rows_of("sm90_matmul")) {
        const std::string name = gpu_test::name_of(row);
        if (name.find("k64_s7") == std::string::npos && name.find("k64_s12") == std::string::npos)
          continue;
        p.expect_right(problem, "hostile lists by " + name, [&](const MatmulProblem& device) {
          MatmulProblem given = device;
          given.b.sparse = p.moved(Operand(lists.as_given)).sparse;
          matmul(given, {.kernel = name});
        });
      }
    }
}

TEST(GpuMatmulFp8, DenseForms) {
  SKIP_UNLESS_HOPPER();
  const Form forms[] = {Form::none, Form::one, Form::line, Form::by_128, Form::by_128x128};
  for (const Form a : forms)
    for (const Form b : forms) {
      if (a == Form::by_128 && b == Form::by_128) continue;
      Products p(13);
      MatmulProblem problem;
      problem.a = lines_of(p, {200, 784}), problem.b = transpose(lines_of(p, {140, 784}));
      problem.a.scale = factors(p, a, 200, 784), problem.b.scale = factors(p, b, 140, 784);
      problem.out = p.matrix(DType::bf16, {200, 140}, 0, true);
      expect_right(p, problem,
                   "dense forms " + std::to_string(static_cast<int>(a)) + " " +
                       std::to_string(static_cast<int>(b)));
    }
}

TEST(GpuMatmulFp8, GroupsOfRows) {
  SKIP_UNLESS_HOPPER();
  const std::pair<Form, Form> forms[] = {{Form::one, Form::one},
                                         {Form::line, Form::matrix},
                                         {Form::line, Form::line},
                                         {Form::by_128, Form::by_128x128}};
  constexpr std::int64_t kTotal = 333, kDepth = 272, kOut = 136;
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{0, 0, 1, 1, 166, 330, 333, 333}, {0, 333}, {0, 128, 256, 333}})
    for (const auto& [a, b] : forms)
      for (const bool arithmetic : {false, true}) {
        Products p(15);
        const auto groups = static_cast<std::int64_t>(cuts.size()) - 1;
        MatmulProblem problem;
        problem.a = lines_of(p, {kTotal, kDepth});
        problem.b = transpose(lines_of(p, {groups, kOut, kDepth}));
        problem.a.scale = factors(p, a, kTotal, kDepth);
        problem.b.scale = factors(p, b, kOut, kDepth, groups);
        problem.out = p.matrix(arithmetic ? DType::f32 : DType::bf16, {kTotal, kOut}, 0, true);
        problem.group_offsets = p.list(DType::i32, {groups + 1}, cuts);
        if (arithmetic) {
          problem.epilogue.bias = p.matrix(DType::f32, {groups, kOut});
          problem.epilogue.activation = Activation::gelu;
        }
        expect_right(p, problem,
                     std::to_string(groups) + " groups, forms " +
                         std::to_string(static_cast<int>(a)) + " " +
                         std::to_string(static_cast<int>(b)));
      }
}

}  // namespace
}  // namespace tessera
