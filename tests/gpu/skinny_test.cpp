// The rows for few columns, each on everything that it takes.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

namespace tessera {
namespace {

using generate::Random;
using gpu_test::Products;

void expect_right_by_each_row(Products& p, const MatmulProblem& problem, const std::string& text) {
  for (int row : gpu_test::rows_of("skinny"))
    p.expect_right(problem, text + " by " + gpu_test::name_of(row),
                   [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
}

/// Stored the other way round: columns contiguous.
Tensor turned(Tensor t) {
  std::swap(t.shape[0], t.shape[1]);
  std::swap(t.strides[0], t.strides[1]);
  return t;
}

/// Each side short, contiguous either way; depths that blocks of threads share, and odd ones.
TEST(GpuSkinny, DenseEitherSideEachTranspose) {
  SKIP_UNLESS_HOPPER();
  const std::int64_t shapes[][3] = {{1, 300, 200}, {257, 17, 136},  {140, 270, 72},
                                    {64, 33, 0},   {16, 520, 1024}, {1500, 3, 264}};
  for (DType dtype : {DType::bf16, DType::f16})
    for (const auto& [m, n, k] : shapes)
      for (bool ta : {false, true})
        for (bool tb : {false, true})
          for (bool columns : {false, true}) {
            Products p(1, 24);
            MatmulProblem problem;
            problem.a = ta ? p.matrix(dtype, {k, m}, 8) : p.matrix(dtype, {m, k}, 8);
            problem.b = tb ? p.matrix(dtype, {n, k}) : p.matrix(dtype, {k, n});
            problem.a.transposed = ta;
            problem.b.transposed = tb;
            problem.out = columns ? turned(p.matrix(dtype, {n, m}, 0, true))
                                  : p.matrix(dtype, {m, n}, 0, true);
            expect_right_by_each_row(p, problem,
                                     std::to_string(m) + "x" + std::to_string(n) + "x" +
                                         std::to_string(k) + (ta ? " A^T" : "") +
                                         (tb ? " B^T" : ""));
          }
}

TEST(GpuSkinny, Epilogues) {
  SKIP_UNLESS_HOPPER();
  const Activation activations[] = {Activation::none, Activation::relu, Activation::gelu,
                                    Activation::gelu_tanh, Activation::silu};
  int kind = 0;
  for (DType out : {DType::bf16, DType::f16, DType::f32})
    for (bool columns : {false, true})
      for (Activation activation : activations) {
        ++kind;
        Products p(3);
        MatmulProblem problem;
        const std::int64_t m = 50, n = kind % 2 ? 304 : 300;
        problem.a = p.matrix(DType::bf16, {m, 640});
        problem.b = p.matrix(DType::bf16, {640, n});
        const auto result = [&](DType dtype, bool by_columns, bool poison) {
          return by_columns ? turned(p.matrix(dtype, {n, m}, 0, poison))
                            : p.matrix(dtype, {m, n}, 0, poison);
        };
        Epilogue& e = problem.epilogue;
        e.activation = activation;
        e.alpha = kind % 3 ? 0.5f : 1.0f;
        problem.out = result(out, columns, true);
        if (kind % 4 < 2) {
          e.beta = -0.75f;
          e.c = result(kind % 4 ? DType::f32 : DType::bf16, kind % 5 ? columns : !columns, false);
        }
        if (kind % 3 < 2) {
          e.bias_axis = kind % 2 ? BiasAxis::row : BiasAxis::column;
          const std::int64_t length = kind % 2 ? m : n;
          const DType dtype = kind % 3 ? DType::f32 : DType::bf16;
          e.bias = tensor(p.matrix(dtype, {1, length}).data, dtype, {length});
        }
        expect_right_by_each_row(p, problem, "kind " + std::to_string(kind));
      }
}

TEST(GpuSkinny, Batches) {
  SKIP_UNLESS_HOPPER();
  for (bool shared : {false, true}) {
    Products p(4);
    MatmulProblem problem;
    problem.a = p.matrix(DType::bf16, {3, 20, 328});
    problem.b = shared ? p.matrix(DType::bf16, {328, 136}) : p.matrix(DType::bf16, {3, 328, 136});
    problem.out = p.matrix(DType::bf16, {3, 20, 136}, 0, true);
    expect_right_by_each_row(p, problem, shared ? "one b" : "batches");
  }
}

/// Row 1 is full, row 2 empty.
Pattern with_gaps(std::int64_t rows, std::int64_t cols, Random& random) {
  Pattern pattern{rows, cols, {0}, {}};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      if (i == 1 || (i != 2 && random.chance(0.3))) pattern.indices.push_back(j);
    pattern.offsets.push_back(pattern.stored());
  }
  return pattern;
}

TEST(GpuSkinny, SparseEitherSide) {
  SKIP_UNLESS_HOPPER();
  const std::int64_t blocks[][2] = {{64, 64}, {128, 128}, {192, 64}, {64, 128}};
  for (DType dtype : {DType::bf16, DType::f16})
    for (const auto& [rows, cols] : blocks)
      for (std::int64_t length : {1, 40, 130})
        for (bool left : {false, true})
          for (bool other : {false, true}) {
            Products p(5, 24);
            const Pattern pattern = with_gaps(3, 640 / cols, p.random());
            const BsrMatrix sparse =
                p.bsr(dtype, pattern, rows, cols, other ? DType::i64 : DType::i32);
            MatmulProblem problem;
            const std::int64_t depth = sparse.cols;
            if (left) {
              problem.a = sparse;
              problem.b =
                  other ? p.matrix(dtype, {length, depth}) : p.matrix(dtype, {depth, length});
              problem.b.transposed = other;
              problem.out = p.matrix(dtype, {sparse.rows, length}, 0, true);
            } else {
              problem.a =
                  other ? p.matrix(dtype, {depth, length}) : p.matrix(dtype, {length, depth});
              problem.a.transposed = other;
              problem.b = sparse;
              problem.b.transposed = true;
              problem.out = p.matrix(dtype, {length, sparse.rows}, 0, true);
            }
            expect_right_by_each_row(p, problem,
                                     "blocks " + std::to_string(rows) + "x" + std::to_string(cols) +
                                         ", other side " + std::to_string(length));
          }
}

/// Contiguous columns of one element a row: no pitch at all.
TEST(GpuSkinny, Vectors) {
  SKIP_UNLESS_HOPPER();
  Products p(10);
  const auto vector = [&](std::int64_t length, bool poison) {
    const Tensor row = p.matrix(DType::bf16, {1, length}, 0, poison);
    return tensor(row.data, DType::bf16, {length, 1});
  };
  MatmulProblem problem;
  problem.a = p.matrix(DType::bf16, {300, 200});
  problem.b = vector(200, false);
  problem.out = vector(300, true);
  expect_right_by_each_row(p, problem, "dense times a vector");
  problem.a = p.bsr(DType::bf16, with_gaps(4, 5, p.random()), 64, 64, DType::i32);
  problem.b = vector(320, false);
  problem.out = vector(256, true);
  expect_right_by_each_row(p, problem, "sparse times a vector");
}

TEST(GpuSkinny, NothingStored) {
  SKIP_UNLESS_HOPPER();
  Products p(6);
  MatmulProblem problem;
  problem.a = p.bsr(DType::bf16, Pattern{5, 7, {0, 0, 0, 0, 0, 0}, {}}, 64, 64, DType::i32);
  problem.b = p.matrix(DType::bf16, {7 * 64, 10});
  problem.out = p.matrix(DType::bf16, {5 * 64, 10}, 0, true);
  expect_right_by_each_row(p, problem, "no blocks");
}

/// Lists that nobody checked lead nowhere outside the tensors.
TEST(GpuSkinny, HostileLists) {
  SKIP_UNLESS_HOPPER();
  const std::vector<std::vector<std::int64_t>> offsets = {
      {-5, 1 << 30, 3, -7}, {7, 6, 2, 0}, {0, 2, 4, 7}};
  for (const auto& list : offsets) {
    Products p(7);
    BsrMatrix sparse =
        p.bsr(DType::bf16, Pattern{3, 4, {0, 2, 4, 7}, {0, 1, 0, 3, 1, 2, 3}}, 64, 64, DType::i32);
    sparse.row_offsets = p.list(DType::i32, {4}, list);
    sparse.col_indices = p.list(DType::i32, {7}, {-1, 1 << 30, 0, -(1 << 30), 4, 2, 3});
    MatmulProblem problem;
    problem.a = sparse;
    problem.b = p.matrix(DType::bf16, {256, 24});
    problem.out = p.matrix(DType::bf16, {192, 24});
    p.twin().upload();
    for (int row : gpu_test::rows_of("skinny")) gpu_test::run_by(row, p.moved(problem));
    gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    p.expect_untouched_outside(problem.out, p.twin().download(), "hostile lists");
  }
}

/// A grid may begin before the one before it has ended: it must not read that one's results too
/// early, nor overwrite what it reads.
TEST(GpuSkinny, EachProductReadsTheOneBefore) {
  SKIP_UNLESS_HOPPER();
  constexpr int kSteps = 12;
  const std::int64_t width = 512;
  Products p(8, 8);
  const Tensor first = p.matrix(DType::bf16, {8, width});
  std::vector<Tensor> weights;
  for (int i = 0; i < 2; ++i) {
    weights.push_back(p.matrix(DType::bf16, {width, width}));
    for (std::int64_t at = 0; at < width * width; ++at)  // so that values stay where they are
      store_from_float(weights.back().data, DType::bf16, at,
                       0.04f * static_cast<float>(p.random().normal()));
  }
  const Tensor between[2] = {p.matrix(DType::bf16, {8, width}, 0, true),
                             p.matrix(DType::bf16, {8, width}, 0, true)};
  for (int row : gpu_test::rows_of("skinny")) {
    std::string bytes[2];
    for (bool waits : {true, false}) {
      p.twin().upload();
      for (int i = 0; i < kSteps; ++i) {
        MatmulProblem problem;
        problem.a = i == 0 ? first : between[(i + 1) % 2];
        problem.b = weights[static_cast<std::size_t>(i % 2)];
        problem.out = between[i % 2];
        gpu_test::run_by(row, p.moved(problem));
        if (waits) gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      }
      gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      const std::vector<std::byte> all = p.twin().download();
      bytes[waits ? 0 : 1].assign(reinterpret_cast<const char*>(all.data()), all.size());
    }
    EXPECT_EQ(bytes[0], bytes[1]) << gpu_test::name_of(row);
  }
}

TEST(GpuSkinny, SameBitsEveryTime) {
  SKIP_UNLESS_HOPPER();
  Products p(9);
  MatmulProblem problem;
  problem.a = p.matrix(DType::bf16, {33, 1500}, 8);
  problem.b = p.matrix(DType::bf16, {1500, 264});
  problem.out = p.matrix(DType::f32, {33, 264}, 0, true);
  for (int row : gpu_test::rows_of("skinny")) {
    const auto call = [&](const MatmulProblem& device) { gpu_test::run_by(row, device); };
    const std::string first = p.expect_right(problem, "repeat", call);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(p.expect_right(problem, "repeat", call), first);
  }
}

}  // namespace
}  // namespace tessera
