// The rows for products with few columns, on all kinds of problems that they support.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/kernels/cuda/sm90/skinny/plan.hpp"
#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

namespace tessera {
namespace {

using generate::Random;
using gpu_test::Products;

void expect_right_by_each_row(Products& p, const MatmulProblem& problem, const std::string& text) {
  for (int row : gpu_test::rows_of("sm90_skinny"))
    p.expect_right(problem, text + " by " + gpu_test::name_of(row),
                   [&](const MatmulProblem& device) { gpu_test::run_by(row, device); });
}

/// The transposed view: columns are contiguous.
Tensor turned(Tensor t) {
  std::swap(t.shape[0], t.shape[1]);
  std::swap(t.strides[0], t.strides[1]);
  return t;
}

/// Each side short, contiguous by rows or columns; depths that are split, and odd ones.
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
  gpu_test::for_each_epilogue(
      50, 640, [](Products& p, const MatmulProblem& problem, const std::string& text) {
        expect_right_by_each_row(p, problem, text);
      });
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

/// Matrices of one column.
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

/// Invalid lists never lead outside the tensors. Here the blocks of invalid entries hold NaN.
TEST(GpuSkinny, HostileLists) {
  SKIP_UNLESS_HOPPER();
  for (DType index : {DType::i32, DType::i64})
    for (const Pattern& pattern : Products::hostile_patterns(index))
      for (std::int64_t cols : {64, 128})
        for (std::int64_t length : {24, 100}) {
          Products p(7);
          const auto sparse = p.hostile(DType::bf16, index, pattern, 128, cols);
          MatmulProblem problem;
          problem.a = sparse.as_read;
          problem.b = p.matrix(DType::bf16, {4 * cols, length});
          problem.out = p.matrix(DType::bf16, {3 * 128, length}, 0, true);
          MatmulProblem given = problem;
          given.a = sparse.as_given;
          for (int row : gpu_test::rows_of("sm90_skinny")) {
            p.expect_right(problem, "hostile lists by " + gpu_test::name_of(row),
                           [&](const MatmulProblem&) { gpu_test::run_by(row, p.moved(given)); });
          }
        }
}

/// Matrices of a batch, each followed by rows of NaN.
Tensor apart(Products& p, DType dtype, std::int64_t batch, std::int64_t rows, std::int64_t cols,
             bool poison = false) {
  constexpr std::int64_t kBetween = 3;
  Tensor t = p.matrix(dtype, {batch, rows + kBetween, cols}, 8, poison);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t i = rows; i < rows + kBetween; ++i)
      for (std::int64_t j = 0; j < cols; ++j)
        store_from_float(t.data, dtype, b * t.stride(0) + i * t.stride(1) + j,
                         std::numeric_limits<float>::quiet_NaN());
  t.shape[1] = rows;
  return t;
}

TEST(GpuSkinny, BatchesApart) {
  SKIP_UNLESS_HOPPER();
  for (DType dtype : {DType::bf16, DType::f16})
    for (bool turned : {false, true}) {
      Products p(12, 24);
      const std::int64_t m = 37, n = 203, k = 301;
      MatmulProblem problem;
      problem.a = turned ? apart(p, dtype, 3, k, m) : apart(p, dtype, 3, m, k);
      problem.b = turned ? apart(p, dtype, 3, n, k) : apart(p, dtype, 3, k, n);
      problem.a.transposed = problem.b.transposed = turned;
      problem.out = apart(p, DType::f32, 3, m, n, true);
      problem.epilogue.beta = 0.5f;
      problem.epilogue.c = apart(p, dtype, 3, m, n);
      problem.epilogue.bias = p.matrix(dtype, {1, 3, n});
      Tensor& bias = problem.epilogue.bias;
      bias = tensor(bias.data, dtype, {3, n}, {bias.stride(1), 1});
      expect_right_by_each_row(p, problem, turned ? "transposed" : "not transposed");
    }
}

/// Tiles of many heights, split across one to four thread blocks, with one to four on an SM.
TEST(GpuSkinny, ManyCuts) {
  SKIP_UNLESS_HOPPER();
  Random random(13);
  for (int i = 0; i < 24; ++i) {
    const std::int64_t n = random.between(1, 3000), m = random.between(1, i % 2 != 0 ? 9 : 140);
    const std::int64_t k = random.between(1, std::min<std::int64_t>(2500, 1500000 / (n * m) + 1));
    const bool transposed = i % 3 != 0;
    Products p(static_cast<std::uint64_t>(i), 40);
    MatmulProblem problem;
    problem.a = p.matrix(DType::bf16, {m, k}, 8);
    problem.b = transposed ? p.matrix(DType::bf16, {n, k}, 8) : p.matrix(DType::bf16, {k, n}, 8);
    problem.b.transposed = transposed;
    problem.out = p.matrix(DType::bf16, {m, n}, 0, true);
    expect_right_by_each_row(p, problem,
                             std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k));
  }
}

/// Tiles that load columns together. These problems are too large for the oracle, so another kernel
/// row computes the expected result.
TEST(GpuSkinny, TilesThatReadColumnsTogether) {
  SKIP_UNLESS_HOPPER();
  const std::vector<int> rows = gpu_test::rows_of("sm90_skinny");
  for (DType dtype : {DType::bf16, DType::f16})
    for (bool weights_deep : {false, true})
      for (bool tokens_deep : {false, true}) {
        const std::int64_t n = 14336 - 8, m = tokens_deep ? 128 : 100;
        const std::int64_t k = weights_deep ? 3072 - 24 : 2048 - 24;
        Products p(15, 112);
        std::vector<float> pool(65521);  // a prime, so that rows differ
        for (float& value : pool) value = static_cast<float>(p.random().normal());
        const auto matrix = [&](std::int64_t height, std::int64_t width) {
          Tensor t = p.matrix(dtype, {1, height * width}, 0, true);
          for (std::int64_t i = 0; i < height * width; ++i)
            store_from_float(t.data, dtype, i, pool[static_cast<std::size_t>(i) % pool.size()]);
          return tensor(t.data, dtype, {height, width});
        };
        MatmulProblem problem;
        problem.a = tokens_deep ? matrix(m, k) : matrix(k, 104);
        if (!tokens_deep) problem.a.dense.shape[1] = m;
        problem.b = weights_deep ? matrix(n, k) : matrix(k, n);
        problem.a.transposed = !tokens_deep;
        problem.b.transposed = weights_deep;
        problem.out = p.matrix(DType::f32, {m, n}, 0, true);
        const planning::SkinnyLayout layout =
            planning::skinny_layout(planning::shape_of(problem), gpu_test::row_at(rows.back()),
                                    device_facts({DeviceKind::cuda, 0}));
        EXPECT_EQ(layout.together, planning::kSkinnyTogether);
        std::vector<float> results[2];
        for (std::size_t i = 0; i < 2; ++i) {
          p.twin().upload();
          gpu_test::run_by(i == 0 ? rows.back() : rows.front(), p.moved(problem));
          std::vector<std::byte> copy = p.twin().download();
          const auto* const out =
              static_cast<const float*>(p.twin().inside(problem.out, copy).data);
          results[i].assign(out, out + m * n);
          p.expect_untouched_outside(problem.out, std::move(copy), "read together");
        }
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < results[0].size(); ++i)
          if (!(std::fabs(results[0][i] - results[1][i]) < 0.02f)) ++wrong;
        EXPECT_EQ(wrong, 0u) << (weights_deep ? "W^T, " : "W, ") << (tokens_deep ? "x" : "x^T");
      }
}

/// A grid may begin before the previous grid ends. It must not read that grid's results too early,
/// nor overwrite its inputs. Some grids are of another kernel.
TEST(GpuSkinny, EachProductReadsTheOneBefore) {
  SKIP_UNLESS_HOPPER();
  constexpr int kSteps = 60;
  const std::int64_t width = 512;
  Products p(8, 8);
  const Tensor first = p.matrix(DType::bf16, {8, width});
  std::vector<Operand> weights;
  const auto shrink =
      [&](const Tensor& t) {  // so that values neither grow nor vanish over the steps
        for (std::int64_t at = 0; at < t.numel(); ++at)
          store_from_float(t.data, DType::bf16, at,
                           0.04f * static_cast<float>(p.random().normal()));
      };
  for (int i = 0; i < 2; ++i) {
    weights.emplace_back(p.matrix(DType::bf16, {width, width}));
    shrink(weights.back().dense);
  }
  weights.emplace_back(p.bsr(DType::bf16, with_gaps(8, 8, p.random()), 64, 64, DType::i32));
  shrink(weights.back().sparse.values);
  weights.back().transposed = true;
  const Tensor between[2] = {p.matrix(DType::bf16, {8, width}, 0, true),
                             p.matrix(DType::bf16, {8, width}, 0, true)};
  const int other = gpu_test::rows_of("sm90_bsr").front();
  for (int row : gpu_test::rows_of("sm90_skinny")) {
    std::string bytes[2];
    for (bool waits : {true, false}) {
      p.twin().upload();
      for (int i = 0; i < kSteps; ++i) {
        MatmulProblem problem;
        problem.a = i == 0 ? first : between[(i + 1) % 2];
        problem.b = weights[static_cast<std::size_t>(i % 3)];
        problem.out = between[i % 2];
        gpu_test::enqueue_by(i % 12 == 11 ? other : row, p.moved(problem));
        if (waits) gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      }
      gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      const std::vector<std::byte> all = p.twin().download();
      bytes[waits ? 0 : 1].assign(reinterpret_cast<const char*>(all.data()), all.size());
    }
    EXPECT_EQ(bytes[0], bytes[1]) << gpu_test::name_of(row);
  }
}

/// Two threads launch one kernel with different amounts of shared memory.
TEST(GpuSkinny, TwoThreads) {
  SKIP_UNLESS_HOPPER();
  Products p(14, 8);
  const auto problem_of = [&](std::int64_t n, std::int64_t k) {
    MatmulProblem problem;
    problem.a = p.matrix(DType::bf16, {10, k});
    problem.b = p.matrix(DType::bf16, {n, k});
    problem.b.transposed = true;
    problem.out = p.matrix(DType::bf16, {10, n}, 0, true);
    return problem;
  };
  const MatmulProblem problems[] = {problem_of(64, 640), problem_of(2800, 56)};
  p.twin().upload();
  for (int row : gpu_test::rows_of("sm90_skinny")) {
    std::string errors[2];
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < 2; ++i)
      threads.emplace_back([&, i] {
        try {
          const MatmulProblem device = p.moved(problems[i]);
          for (int turn = 0; turn < 400; ++turn) gpu_test::enqueue_by(row, device);
        } catch (const std::exception& error) {
          errors[i] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (const std::string& error : errors) EXPECT_EQ(error, "") << gpu_test::name_of(row);
  }
}

/// Operands and results of more than 2^31 elements.
TEST(GpuSkinny, ManyElements) {
  SKIP_UNLESS_HOPPER();
  using gpu_test::Uniform;
  constexpr int kFew = 0x3C, kLast = 0x3D, kOther = 0x3F;
  const auto expect = [&](const MatmulProblem& problem, std::int64_t k, const std::string& text) {
    const std::int64_t m = problem.out.size(0), n = problem.out.size(1);
    const float each = static_cast<float>(k) * Uniform::value(kOther);
    for (std::int64_t line : {std::int64_t{0}, m - 1}) {
      // The two differ by a factor of four. Long sums are truncated at each step: tolerance of 1%.
      const float few = each * Uniform::value(kFew), last = each * Uniform::value(kLast);
      for (float x : gpu_test::some_floats(problem.out, line * n, 64))
        EXPECT_NEAR(x, few, few / 100) << text;
      for (float x : gpu_test::some_floats(problem.out, line * n + n - 64, 64))
        EXPECT_NEAR(x, last, last / 100) << text;
    }
  };
  const std::int64_t shapes[][3] = {{16, (1 << 18) + 64, 8256}, {128, (1 << 24) + 64, 16}};
  for (const auto& [m, n, k] : shapes) {
    const Uniform weights(DType::bf16, {n, k}, kFew, 64, kLast),
        tokens(DType::bf16, {m, k}, kOther);
    const Uniform out(DType::f32, {m, n}, 0xFF);
    MatmulProblem problem;
    problem.a = tokens.view();
    problem.b = weights.view();
    problem.b.transposed = true;
    problem.out = out.view();
    for (int row : gpu_test::rows_of("sm90_skinny")) {
      gpu_test::run_by(row, problem);
      expect(problem, k, gpu_test::name_of(row));
    }
  }
}

TEST(GpuSkinny, ManyStoredElements) {
  SKIP_UNLESS_HOPPER();
  gpu_test::expect_many_stored_elements("sm90_skinny");
}

TEST(GpuSkinny, SameBitsEveryTime) {
  SKIP_UNLESS_HOPPER();
  Products p(9);
  MatmulProblem problem;
  problem.a = p.matrix(DType::bf16, {33, 1500}, 8);
  problem.b = p.matrix(DType::bf16, {1500, 264});
  problem.out = p.matrix(DType::f32, {33, 264}, 0, true);
  for (int row : gpu_test::rows_of("sm90_skinny")) {
    const auto call = [&](const MatmulProblem& device) { gpu_test::run_by(row, device); };
    const std::string first = p.expect_right(problem, "repeat", call);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(p.expect_right(problem, "repeat", call), first);
  }
}

}  // namespace
}  // namespace tessera
