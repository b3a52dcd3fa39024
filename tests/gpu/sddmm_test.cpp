#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/products.hpp"

namespace tessera {
namespace {

using generate::Random;
using gpu_test::Products;

constexpr DType kHalves[] = {DType::bf16, DType::f16};

/// Row 1 is full, row 2 empty, and the others have a third of the blocks.
Pattern with_gaps(std::int64_t rows, std::int64_t cols, Random& random) {
  Pattern pattern{rows, cols, {0}, {}};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      if (i == 1 || (i != 2 && random.chance(1.0 / 3))) pattern.indices.push_back(j);
    pattern.offsets.push_back(pattern.stored());
  }
  return pattern;
}

struct Case {
  std::int64_t r = 64, c = 64, k = 72;
  bool ta = false, tb = false;
  DType dtype = DType::bf16, out = DType::bf16, index = DType::i32;
  float alpha = 1, beta = 0;

  std::string text() const {
    return std::to_string(r) + "x" + std::to_string(c) + " k " + std::to_string(k) +
           (ta ? " A^T" : "") + (tb ? " B^T " : " ") + to_string(dtype) + " to " + to_string(out) +
           " beta " + std::to_string(beta);
  }
};

SddmmProblem problem_of(Products& p, const Case& s, const Pattern& pattern) {
  const std::int64_t m = pattern.rows * s.r, n = pattern.cols * s.c;
  SddmmProblem problem;
  problem.a = s.ta ? p.matrix(s.dtype, {s.k, m}, 8) : p.matrix(s.dtype, {m, s.k}, 8);
  problem.b = s.tb ? p.matrix(s.dtype, {n, s.k}) : p.matrix(s.dtype, {s.k, n});
  problem.a.transposed = s.ta;
  problem.b.transposed = s.tb;
  problem.out = p.bsr(s.out, pattern, s.r, s.c, s.index);
  problem.alpha = s.alpha;
  problem.beta = s.beta;
  if (s.beta == 0.0f && pattern.stored() > 0)
    problem.out.values = p.matrix(s.out, {pattern.stored(), s.r, s.c}, 0, true);
  return problem;
}

void expect_right(const Case& s, std::int64_t rows = 4, std::int64_t cols = 9) {
  Products p(static_cast<std::uint64_t>(s.r * 3 + s.c + s.k));
  const Pattern pattern = with_gaps(rows, cols, p.random());
  p.expect_right(problem_of(p, s, pattern), s.text());
}

TEST(GpuSddmm, EveryBlockAndTranspose) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t r : {16, 32, 64, 128})
    for (std::int64_t c : {16, 32, 64, 128})
      for (bool ta : {false, true})
        for (bool tb : {false, true})
          for (DType dtype : kHalves) {
            Case s{.r = r, .c = c, .ta = ta, .tb = tb, .dtype = dtype, .out = dtype};
            s.k = dtype == DType::f16 ? 200 : 64;
            s.index = ta == tb ? DType::i32 : DType::i64;
            expect_right(s, 4, c < 64 ? 15 : 7);
          }
}

TEST(GpuSddmm, BlocksByComposition) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t r : {48, 96, 192, 256})
    for (std::int64_t c : {48, 96, 192, 80})
      for (bool tb : {false, true}) expect_right({.r = r, .c = c, .k = 136, .ta = tb, .tb = tb});
}

TEST(GpuSddmm, AnyDepth) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t k : {0, 1, 2, 7, 8, 63, 65, 130, 577})
    for (std::int64_t block : {16, 32, 64, 128})
      for (bool ta : {false, true})
        expect_right({.r = block, .c = block, .k = k, .ta = ta, .tb = ta});
}

TEST(GpuSddmm, AlphaBetaAndOutputTypes) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t block : {16, 32, 64, 128})
    for (DType out : {DType::bf16, DType::f16, DType::f32})
      for (int kind = 0; kind < 4; ++kind) {
        Case s{.r = block, .c = block, .out = out};
        if (kind > 0) s.alpha = -0.75f;
        if (kind > 1) s.beta = kind == 2 ? 1.0f : 0.5f;
        if (kind == 3) s.k = 0;
        expect_right(s);
      }
}

/// Values whose rows are not aligned to 16 bytes, and blocks that are stored by columns.
TEST(GpuSddmm, AnyStridesOfTheValues) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t block : {16, 32, 64, 128})
    for (DType out : {DType::bf16, DType::f32})
      for (bool turned : {false, true}) {
        Products p(5);
        const Pattern pattern = with_gaps(4, 6, p.random());
        SddmmProblem problem = problem_of(p, {.r = block, .c = block, .out = out}, pattern);
        Tensor& values = problem.out.values;
        values = p.matrix(out, {pattern.stored(), block, block}, 3, true);
        if (turned)
          values = tensor(values.data, out, {pattern.stored(), block, block},
                          {values.stride(0), 1, values.stride(1)});
        p.expect_right(problem, "strides of block " + std::to_string(block));
      }
}

TEST(GpuSddmm, EmptyAndTinyPatterns) {
  SKIP_UNLESS_HOPPER();
  const Pattern patterns[] = {{3, 4, {0, 0, 0, 0}, {}},
                              {3, 4, {0, 0, 1, 1}, {3}},
                              {1, 1, {0, 1}, {0}},
                              {6, 2, {0, 1, 2, 3, 4, 5, 6}, {0, 1, 1, 0, 1, 0}}};
  for (const Pattern& pattern : patterns)
    for (std::int64_t block : {16, 32, 64, 128}) {
      Products p(6);
      p.expect_right(problem_of(p, {.r = block, .c = block}, pattern), "tiny pattern");
    }
}

/// More rows than one round of the search covers, most of them empty.
TEST(GpuSddmm, ManyRows) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t rows : {31, 32, 33, 34, 65, 1200}) {
    Products p(static_cast<std::uint64_t>(rows));
    Pattern pattern{rows, 3, {0}, {}};
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < 3; ++j)
        if (p.random().chance(i % 5 == 0 ? 0.7 : 0.05)) pattern.indices.push_back(j);
      pattern.offsets.push_back(pattern.stored());
    }
    p.expect_right(problem_of(p, {.r = 16, .c = 16, .k = 40}, pattern),
                   std::to_string(rows) + " rows");
  }
}

Tensor as_batch(const Tensor& values, std::int64_t batch) {
  return tensor(values.data, values.dtype,
                {batch, values.size(0) / batch, values.size(1), values.size(2)},
                {values.stride(0) * values.size(0) / batch, values.stride(0), values.stride(1), 1});
}

TEST(GpuSddmm, BatchesWithSharedAndOwnPatterns) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t block : {32, 64, 128})
    for (int kind = 0; kind < 8; ++kind) {
      const bool shared_a = kind & 1, shared_b = kind & 2, own_lists = kind & 4;
      Products p(static_cast<std::uint64_t>(kind));
      const std::int64_t m = 3 * block, n = 5 * block, k = 72;
      SddmmProblem problem;
      problem.a = shared_a ? p.matrix(DType::bf16, {m, k}) : p.matrix(DType::bf16, {3, m, k});
      problem.b = shared_b ? p.matrix(DType::bf16, {k, n}) : p.matrix(DType::bf16, {3, k, n});
      problem.out.rows = m;
      problem.out.cols = n;
      problem.out.values = as_batch(p.matrix(DType::bf16, {18, block, block}, 0, true), 3);
      if (own_lists) {
        problem.out.row_offsets = p.list(DType::i32, {3, 4}, {0, 2, 2, 6, 0, 5, 6, 6, 0, 0, 1, 6});
        problem.out.col_indices =
            p.list(DType::i32, {3, 6}, {1, 4, 0, 1, 2, 3, 0, 1, 2, 3, 4, 2, 3, 0, 1, 2, 3, 4});
      } else {
        problem.out.row_offsets = p.list(DType::i64, {4}, {0, 2, 2, 6});
        problem.out.col_indices = p.list(DType::i64, {6}, {1, 4, 0, 1, 2, 3});
      }
      p.expect_right(problem, "batch, kind " + std::to_string(kind));
    }
}

/// Matrices of different densities in one pool of blocks, in any order, with blocks of no matrix.
TEST(GpuSddmm, BatchesInOnePool) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t block : {16, 64, 128}) {
    Products p(9);
    const std::int64_t m = 2 * block, n = 9 * block, k = 136;
    SddmmProblem problem;
    problem.a = p.matrix(DType::bf16, {4, m, k});
    problem.b = p.matrix(DType::bf16, {k, n});
    problem.out.rows = m;
    problem.out.cols = n;
    problem.out.values = p.matrix(DType::bf16, {20, block, block}, 0, true);
    problem.out.row_offsets =
        p.list(DType::i32, {4, 3}, {11, 11, 12, 14, 18, 18, 0, 9, 11, 3, 3, 3});
    problem.out.col_indices =
        p.list(DType::i32, {20}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 7, 4, 0, 0, 0, 2, 5, 6, 0, 0});
    p.expect_right(problem, "one pool of blocks " + std::to_string(block));
  }
}

/// With invalid lists, only the values may change.
TEST(GpuSddmm, HostileListsHurtNothing) {
  SKIP_UNLESS_HOPPER();
  const std::int64_t big = std::int64_t{1} << 40;
  const std::vector<std::int64_t> offsets[] = {{0, 9, 3, 12},        {5, 0, 0, 2},
                                               {-7, 100, 100, 12},   {0, 12, 12, big},
                                               {big, big, big, big}, {-big, -big, -big, -big}};
  for (const auto& list : offsets)
    for (std::int64_t column : {std::int64_t{-1}, std::int64_t{5}, big})
      for (std::int64_t block : {16, 32, 64, 128}) {
        Products p(11);
        SddmmProblem problem =
            problem_of(p, {.r = block, .c = block, .index = DType::i64},
                       Pattern{3, 4, {0, 4, 8, 12}, {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}});
        problem.out.row_offsets = p.list(DType::i64, {4}, list);
        problem.out.col_indices =
            p.list(DType::i64, {12}, {0, column, 2, 3, 3, 2, column, column, 1, 1, 1, column});
        p.expect_untouched_outside(problem.out.values, p.run(problem), "hostile lists");
      }
}

/// Deep products, where the thread blocks of a cluster load for each other. With narrow blocks they
/// share all or most columns of B, at equal or different positions in their tiles; with full rows
/// of these lengths, the tiles are one row apart. With blocks of 128 they share rows of A.
TEST(GpuSddmm, NeighboursFetchForEachOther) {
  SKIP_UNLESS_HOPPER();
  const std::int64_t sizes[][4] = {{16, 8, 60, 4160}, {32, 8, 15, 4160}, {128, 2, 4, 4160}};
  for (const auto& [block, rows, cols, k] : sizes)
    for (double density : {1.0, 0.8}) {
      Products p(static_cast<std::uint64_t>(block), 40);
      Pattern pattern{rows, cols, {0}, {}};
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < cols; ++j)
          if (p.random().chance(density)) pattern.indices.push_back(j);
        pattern.offsets.push_back(pattern.stored());
      }
      const Case s{.r = block, .c = block, .k = k, .ta = density < 1.0};
      const SddmmProblem problem = problem_of(p, s, pattern);
      const std::string first = p.expect_right(problem, s.text());
      const std::vector<std::byte> again = p.run(problem);
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(again.data()), again.size()), first);
    }
}

TEST(GpuSddmm, SameBitsEveryTime) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t block : {32, 128}) {
    Products p(4);
    const Pattern pattern = with_gaps(6, 6, p.random());
    const SddmmProblem problem = problem_of(p, {.r = block, .c = block, .k = 700}, pattern);
    const std::string first = p.expect_right(problem, "repeat");
    for (int i = 0; i < 5; ++i) EXPECT_EQ(p.expect_right(problem, "repeat"), first);
  }
}

TEST(GpuSddmm, WhatNoKernelTakesIsRefusedWithReasons) {
  const Device gpu{DeviceKind::cuda, 0};
  const auto refused = [&](std::int64_t block, std::int64_t k, DType dtype, const char* reason) {
    SddmmProblem problem;
    problem.a = tensor(nullptr, dtype, {2 * block, k}, gpu);
    problem.b = tensor(nullptr, dtype, {k, 2 * block}, gpu);
    problem.out = {tensor(nullptr, DType::bf16, {3, block, block}, gpu),
                   tensor(nullptr, DType::i32, {3}, gpu), tensor(nullptr, DType::i32, {3}, gpu),
                   2 * block, 2 * block};
    const Explanation e = explain(problem, device_preset("h100"));
    EXPECT_FALSE(e.supported);
    EXPECT_NE(to_text(e).find(reason), std::string::npos) << to_text(e);
  };
  refused(64, 63, DType::bf16, "multiples of 16 bytes");
  refused(64, 64, DType::f32, "dtype f32 is not supported");
  refused(8, 64, DType::f16, "block columns: expected a multiple of 16, got 8");
  refused(8, 64, DType::f16, "block rows: expected a multiple of 16, got 8");
}

}  // namespace
}  // namespace tessera
