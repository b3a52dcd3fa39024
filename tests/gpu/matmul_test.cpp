#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/products.hpp"

namespace tessera {
namespace {

using generate::Random;
using gpu_test::Products;

constexpr DType kHalves[] = {DType::bf16, DType::f16};

std::string name_of(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k, bool ta, bool tb) {
  return std::string(to_string(dtype)) + " " + std::to_string(m) + "x" + std::to_string(n) + "x" +
         std::to_string(k) + (ta ? " A^T" : "") + (tb ? " B^T" : "");
}

TEST(GpuMatmul, DenseOddShapesAllTransposes) {
  SKIP_UNLESS_HOPPER();
  const std::int64_t shapes[][3] = {{1, 1, 1},      {1, 8, 64},     {130, 264, 72}, {77, 500, 136},
                                    {128, 256, 64}, {513, 40, 100}, {300, 15, 8},   {64, 257, 65},
                                    {129, 255, 63}, {5, 1030, 300}, {200, 200, 0}};
  for (DType dtype : kHalves)
    for (const auto& [m, n, k] : shapes)
      for (bool ta : {false, true})
        for (bool tb : {false, true}) {
          Products p(7);
          MatmulProblem problem;
          problem.a = ta ? p.matrix(dtype, {k, m}, 8) : p.matrix(dtype, {m, k}, 8);
          problem.b = tb ? p.matrix(dtype, {n, k}) : p.matrix(dtype, {k, n});
          problem.a.transposed = ta;
          problem.b.transposed = tb;
          problem.out = p.matrix(dtype, {m, n}, m % 2 * 3, true);
          p.expect_right(problem, name_of(dtype, m, n, k, ta, tb));
        }
}

TEST(GpuMatmul, BatchesAndSharedOperands) {
  SKIP_UNLESS_HOPPER();
  for (bool shared_a : {false, true})
    for (bool shared_b : {false, true}) {
      Products p(8);
      MatmulProblem problem;
      problem.a = shared_a ? p.matrix(DType::bf16, {70, 96}) : p.matrix(DType::bf16, {3, 70, 96});
      problem.b = shared_b ? p.matrix(DType::bf16, {96, 130}) : p.matrix(DType::bf16, {3, 96, 130});
      problem.out = shared_a && shared_b ? p.matrix(DType::bf16, {70, 130}, 0, true)
                                         : p.matrix(DType::bf16, {3, 70, 130}, 0, true);
      p.expect_right(problem, "batch");
    }
}

TEST(GpuMatmul, EpiloguesAndOutputTypes) {
  SKIP_UNLESS_HOPPER();
  for (DType out : {DType::bf16, DType::f16, DType::f32})
    for (Activation activation : {Activation::none, Activation::relu, Activation::gelu,
                                  Activation::gelu_tanh, Activation::silu})
      for (int kind = 0; kind < 4; ++kind) {
        Products p(9);
        MatmulProblem problem;
        problem.a = p.matrix(DType::bf16, {100, 64});
        problem.b = p.matrix(DType::bf16, {64, 264});
        problem.out = p.matrix(out, {100, 264}, 0, kind < 3);
        Epilogue& e = problem.epilogue;
        e.activation = activation;
        if (kind > 0) e.alpha = -0.75f;
        if (kind == 1) e.bias = p.matrix(DType::f32, {1, 264});
        if (kind == 2) e.bias = p.matrix(DType::bf16, {1, 100});
        if (e.bias) {
          e.bias_axis = kind == 1 ? BiasAxis::column : BiasAxis::row;
          e.bias = tensor(e.bias.data, e.bias.dtype, {e.bias.size(1)});
        }
        if (kind == 2) {
          e.beta = 0.5f;
          e.c = p.matrix(DType::f16, {100, 264});
        }
        if (kind == 3) e.beta = 2.0f;  // without c, beta scales the former contents of out
        p.expect_right(problem, std::string(to_string(activation)) + " kind " +
                                    std::to_string(kind) + " " + to_string(out));
      }
}

Pattern with_gaps(std::int64_t rows, std::int64_t cols, Random& random) {
  Pattern pattern{rows, cols, {0}, {}};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      if (i == 1 || (i != 2 && random.chance(1.0 / 3)))
        pattern.indices.push_back(j);  // row 1 is full, row 2 empty
    pattern.offsets.push_back(pattern.stored());
  }
  return pattern;
}

TEST(GpuMatmul, SparseTimesDense) {
  SKIP_UNLESS_HOPPER();
  for (DType dtype : kHalves)
    for (DType index : {DType::i32, DType::i64})
      for (std::int64_t r : {64, 128, 192, 256})
        for (std::int64_t c : {64, 128})
          for (std::int64_t n : {1, 7, 45, 256, 300})
            for (bool tb : {false, true}) {
              Products p(static_cast<std::uint64_t>(r + c + n));
              MatmulProblem problem;
              problem.a = p.bsr(dtype, with_gaps(4, 5, p.random()), r, c, index);
              problem.b = tb ? p.matrix(dtype, {n, 5 * c}) : p.matrix(dtype, {5 * c, n});
              problem.b.transposed = tb;
              problem.out = p.matrix(dtype, {4 * r, n}, 0, true);
              p.expect_right(problem, "blocks " + std::to_string(r) + "x" + std::to_string(c) +
                                          " n " + std::to_string(n));
            }
}

/// y = x W^T: the result is computed as its transpose.
TEST(GpuMatmul, DenseTimesSparseTransposed) {
  SKIP_UNLESS_HOPPER();
  for (DType dtype : kHalves)
    for (std::int64_t block : {64, 128})
      for (std::int64_t tokens : {1, 8, 16, 100, 264})
        for (int kind = 0; kind < 3; ++kind) {
          Products p(static_cast<std::uint64_t>(block + tokens));
          MatmulProblem problem;
          problem.a = p.matrix(dtype, {tokens, 5 * block});
          problem.b = p.bsr(dtype, with_gaps(4, 5, p.random()), block, block, DType::i32);
          problem.b.transposed = true;
          problem.out = p.matrix(kind == 2 ? DType::f32 : dtype, {tokens, 4 * block}, 0, true);
          if (kind == 1) {
            problem.epilogue.bias =
                tensor(p.matrix(dtype, {1, 4 * block}).data, dtype, {4 * block});
            problem.epilogue.activation = Activation::silu;
          }
          p.expect_right(problem, "linear block " + std::to_string(block) + " tokens " +
                                      std::to_string(tokens) + " kind " + std::to_string(kind));
        }
}

TEST(GpuMatmul, EmptyPatternGivesTheEpilogueOfZero) {
  SKIP_UNLESS_HOPPER();
  Products p(3);
  MatmulProblem problem;
  problem.a = p.bsr(DType::bf16, Pattern{2, 3, {0, 0, 0}, {}}, 64, 64, DType::i32);
  problem.b = p.matrix(DType::bf16, {192, 72});
  problem.out = p.matrix(DType::bf16, {128, 72}, 0, true);
  p.expect_right(problem, "no blocks");
}

/// prepare reads no dense operand, so it does not ask where they begin.
TEST(GpuMatmul, PlansOfUnalignedOperandsArePreparedWithoutThem) {
  SKIP_UNLESS_HOPPER();
  Products p(12);
  MatmulProblem problem;
  problem.a = p.matrix(DType::bf16, {70, 96}, 1);
  problem.b = p.matrix(DType::bf16, {96, 130}, 3);
  problem.out = p.matrix(DType::bf16, {70, 130}, 0, true);
  p.expect_right(problem, "planned", [](const MatmulProblem& device) {
    const Plan made = plan(device);
    MatmulProblem lists = device;
    lists.a.dense.data = lists.b.dense.data = lists.out.data = nullptr;
    prepare(made, lists, {});
    run(made, device, {});
  });
}

TEST(GpuMatmul, SameBitsEveryTime) {
  SKIP_UNLESS_HOPPER();
  Products p(4);
  MatmulProblem problem;
  problem.a = p.bsr(DType::bf16, with_gaps(6, 6, p.random()), 128, 64, DType::i32);
  problem.b = p.matrix(DType::bf16, {384, 520});
  problem.out = p.matrix(DType::bf16, {768, 520}, 0, true);
  const std::string first = p.expect_right(problem, "repeat");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(p.expect_right(problem, "repeat"), first);
}

TEST(GpuMatmul, WhatNoKernelTakesIsRefusedWithReasons) {
  SKIP_UNLESS_HOPPER();
  const auto refused = [](const MatmulProblem& problem, const char* reason) {
    const Explanation e = explain(problem, device_preset("h100"), {.backend = Backend::sm90});
    EXPECT_FALSE(e.supported);
    EXPECT_NE(to_text(e).find(reason), std::string::npos) << to_text(e);
  };
  const Device gpu{DeviceKind::cuda, 0};
  MatmulProblem single;
  single.a = tensor(nullptr, DType::f32, {64, 64}, gpu);
  single.b = tensor(nullptr, DType::f32, {64, 64}, gpu);
  single.out = tensor(nullptr, DType::f32, {64, 64}, gpu);
  refused(single, "dtype f32 is not supported (supported: f16, bf16)");
}

}  // namespace
}  // namespace tessera
