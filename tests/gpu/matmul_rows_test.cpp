// Each row that supports a problem runs it, whichever row the cost model would choose.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

namespace tessera {
namespace {

using generate::Random;
using gpu_test::Captured;
using gpu_test::Products;

using gpu_test::run_by;

/// The rows of sm90/matmul for 16 bits.
std::vector<int> matmul_rows() {
  std::vector<int> rows = gpu_test::rows_of("sm90_matmul");
  std::erase_if(
      rows, [](int row) { return !(gpu_test::row_at(row).dtypes & core::dtypes({DType::bf16})); });
  return rows;
}

void expect_right_by_each_row(Products& p, const MatmulProblem& problem, const std::string& text) {
  for (int row : matmul_rows()) {
    p.expect_right(problem, text + " by " + gpu_test::name_of(row),
                   [&](const MatmulProblem& device) { run_by(row, device); });
  }
}

std::string words(std::int64_t m, std::int64_t n, std::int64_t k) {
  return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
}

/// The transposed view: columns are contiguous.
Tensor turned(Tensor t) {
  std::swap(t.shape[0], t.shape[1]);
  std::swap(t.strides[0], t.strides[1]);
  return t;
}

TEST(GpuMatmulRows, EachRowTakesEachShapeAndTranspose) {
  SKIP_UNLESS_HOPPER();
  const std::int64_t shapes[][3] = {{1, 300, 200}, {257, 17, 136}, {140, 270, 72}, {64, 33, 0}};
  for (DType dtype : {DType::bf16, DType::f16})
    for (const auto& [m, n, k] : shapes)
      for (bool ta : {false, true})
        for (bool tb : {false, true}) {
          Products p(1);
          MatmulProblem problem;
          problem.a = ta ? p.matrix(dtype, {k, m}, 8) : p.matrix(dtype, {m, k}, 8);
          problem.b = tb ? p.matrix(dtype, {n, k}) : p.matrix(dtype, {k, n});
          problem.a.transposed = ta;
          problem.b.transposed = tb;
          problem.out = p.matrix(dtype, {m, n}, 0, true);
          expect_right_by_each_row(p, problem, words(m, n, k));
        }
}

/// Few tiles of large depth, which thread blocks split.
TEST(GpuMatmulRows, SharedDepth) {
  SKIP_UNLESS_HOPPER();
  const std::int64_t shapes[][3] = {
      {1, 520, 1000}, {16, 300, 2048}, {40, 129, 1000}, {100, 264, 1536}, {300, 128, 520}};
  for (const auto& [m, n, k] : shapes)
    for (bool columns : {false, true})
      for (DType out : {DType::bf16, DType::f32}) {
        Products p(2);
        MatmulProblem problem;
        problem.a = p.matrix(DType::bf16, {m, k});
        problem.b = p.matrix(DType::bf16, {n, k});
        problem.b.transposed = true;
        problem.out =
            columns ? turned(p.matrix(out, {n, m}, 0, true)) : p.matrix(out, {m, n}, 0, true);
        if (out == DType::f32) problem.epilogue.activation = Activation::silu;
        expect_right_by_each_row(p, problem, words(m, n, k) + (columns ? " by columns" : ""));
      }
}

TEST(GpuMatmulRows, EpiloguesBothWays) {
  SKIP_UNLESS_HOPPER();
  gpu_test::for_each_epilogue(
      200, 64, [](Products& p, const MatmulProblem& problem, const std::string& text) {
        expect_right_by_each_row(p, problem, text);
      });
}

/// Pitches, bases and strides that TMA cannot read.
TEST(GpuMatmulRows, CopiesWhatCannotBeRead) {
  SKIP_UNLESS_HOPPER();
  for (int kind = 0; kind < 6; ++kind) {
    Products p(4);
    const std::int64_t m = 77, n = 90, k = 301;
    MatmulProblem problem;
    const auto odd = [&](std::int64_t rows, std::int64_t cols, std::int64_t pitch, int base) {
      Tensor t = p.matrix(DType::bf16, {rows, pitch + 8});
      t.data = static_cast<std::byte*>(t.data) + base * 2;
      t.shape[1] = cols;
      t.strides[0] = pitch;
      return t;
    };
    problem.a = kind % 2 ? odd(m, k, k, kind) : p.matrix(DType::bf16, {m, k});
    problem.b = kind < 4 ? odd(k, n, n + kind, 1) : p.matrix(DType::bf16, {k, n});
    if (kind == 2) problem.a = turned(odd(k, m, m + 2, 3));
    if (kind == 4) {  // every second element
      problem.a = p.matrix(DType::bf16, {m, 2 * k});
      problem.a.dense.shape[1] = k;
      problem.a.dense.strides[1] = 2;
    }
    if (kind == 5) {
      problem.a = p.matrix(DType::bf16, {3, m, k}, 3);
      problem.out = p.matrix(DType::bf16, {3, m, n}, 0, true);
    } else {
      problem.out = odd(m, n, n, 1);
    }
    expect_right_by_each_row(p, problem, "kind " + std::to_string(kind));
    const std::string text =
        to_text(explain(p.moved(problem), device_preset("h200"), {.backend = Backend::sm90}));
    EXPECT_NE(text.find(kind == 0 ? "copies b" : "copies a"), std::string::npos) << text;
  }
}

/// Offsets of groups. Kind 0 has empty groups at both ends and in between.
std::vector<std::int64_t> cuts_of(std::int64_t total, int kind) {
  if (kind == 0) return {0, 0, 1, 1, total / 2, total - 3, total, total};
  if (kind == 1) return {0, total};
  std::vector<std::int64_t> cuts{0};  // more groups than a warp has lanes
  for (int i = 1; i < 70; ++i) cuts.push_back(std::min<std::int64_t>(total, cuts.back() + i % 9));
  cuts.push_back(total);
  return cuts;
}

TEST(GpuMatmulRows, GroupsOfRows) {
  SKIP_UNLESS_HOPPER();
  for (int kind = 0; kind < 3; ++kind)
    for (DType index : {DType::i32, DType::i64})
      for (bool tb : {false, true}) {
        Products p(5);
        const std::int64_t total = 333, k = 72, n = 136;
        const std::vector<std::int64_t> cuts = cuts_of(total, kind);
        const auto groups = static_cast<std::int64_t>(cuts.size()) - 1;
        MatmulProblem problem;
        const bool ta = index == DType::i64 && kind == 0;
        problem.a = ta ? p.matrix(DType::bf16, {k, total}) : p.matrix(DType::bf16, {total, k});
        problem.a.transposed = ta;
        problem.b =
            tb ? p.matrix(DType::bf16, {groups, n, k}) : p.matrix(DType::bf16, {groups, k, n});
        problem.b.transposed = tb;
        problem.out = kind == 0 ? turned(p.matrix(DType::bf16, {n, total}, 0, true))
                                : p.matrix(DType::bf16, {total, n}, 0, true);
        problem.group_offsets = p.list(index, {groups + 1}, cuts);
        if (tb) {
          problem.epilogue.bias = p.matrix(DType::f32, {groups, n});
          problem.epilogue.activation = Activation::gelu;
        }
        expect_right_by_each_row(p, problem, "groups of rows " + std::to_string(kind));
      }
}

/// One group holds NaN, which must not reach the results of other groups.
TEST(GpuMatmulRows, GroupsOfTheInnerDimension) {
  SKIP_UNLESS_HOPPER();
  for (int kind = 0; kind < 3; ++kind)
    for (bool ta : {false, true})
      for (bool tb : {false, true}) {
        Products p(6);
        const std::int64_t total = 333, m = 72, n = 136;
        const std::vector<std::int64_t> cuts = cuts_of(total, kind);
        const auto groups = static_cast<std::int64_t>(cuts.size()) - 1;
        MatmulProblem problem;
        Tensor a = ta ? p.matrix(DType::bf16, {total, m}) : p.matrix(DType::bf16, {m, total});
        Tensor b = tb ? p.matrix(DType::bf16, {n, total}) : p.matrix(DType::bf16, {total, n});
        if (kind == 0)
          for (const auto& [t, along] : {std::pair(a, ta ? 0 : 1), std::pair(b, tb ? 1 : 0)})
            for (std::int64_t at = cuts[4]; at < cuts[5]; ++at)
              store_from_float(t.data, DType::bf16, at * t.stride(along),
                               std::numeric_limits<float>::quiet_NaN());
        problem.a = a, problem.b = b;
        problem.a.transposed = ta, problem.b.transposed = tb;
        problem.out = p.matrix(DType::f32, {groups, m, n}, 0, true);
        problem.group_offsets = p.list(DType::i32, {groups + 1}, cuts);
        problem.group_axis = GroupAxis::inner;
        expect_right_by_each_row(p, problem, "groups of depth " + std::to_string(kind));
      }
}

TEST(GpuMatmulRows, GroupsWithSparseWeights) {
  SKIP_UNLESS_HOPPER();
  Products p(7);
  const std::int64_t total = 150, block = 128;
  Pattern pattern{2, 3, {0, 2, 3}, {0, 2, 1}};
  MatmulProblem problem;
  problem.a = p.matrix(DType::bf16, {total, 3 * block});
  BsrMatrix one = p.bsr(DType::bf16, pattern, block, block, DType::i32);
  BsrMatrix weights = one;  // two groups with one pattern, values of their own
  weights.values = p.matrix(DType::bf16, {6, block, block});
  weights.values = tensor(weights.values.data, DType::bf16, {2, 3, block, block});
  problem.b = weights;
  problem.b.transposed = true;
  problem.out = p.matrix(DType::bf16, {total, 2 * block}, 0, true);
  problem.group_offsets = p.list(DType::i32, {3}, {0, 37, total});
  expect_right_by_each_row(p, problem, "sparse groups");
}

/// Rows before the first offset and from the last one on are zeros, for every layout of the result
/// and every epilogue.
TEST(GpuMatmulRows, RowsOfNoGroupAreZero) {
  SKIP_UNLESS_HOPPER();
  const std::int64_t total = 333, k = 72, n = 136, groups = 3;
  const std::vector<std::vector<std::int64_t>> lists = {
      {0, 100, 100, 300}, {7, 40, 150, 332}, {5, 5, 5, 5}, {0, 0, 0, 0}, {333, 333, 333, 333}};
  for (const auto& cuts : lists)
    for (DType dtype : {DType::bf16, DType::f32})
      for (int layout = 0; layout < 3; ++layout) {
        Products p(5);
        MatmulProblem problem;
        problem.a = p.matrix(DType::bf16, {total, k});
        problem.b = p.matrix(DType::bf16, {groups, k, n});
        problem.out = layout == 0 ? turned(p.matrix(dtype, {n, total}, 0, true))
                                  : p.matrix(dtype, {total, n}, layout == 1 ? 0 : 3, true);
        problem.group_offsets = p.list(DType::i32, {groups + 1}, cuts);
        problem.epilogue.bias = p.matrix(DType::f32, {groups, n});
        expect_right_by_each_row(p, problem, "rows of no group, layout " + std::to_string(layout));
      }
}

/// Invalid offsets never lead outside the tensors.
TEST(GpuMatmulRows, HostileOffsets) {
  SKIP_UNLESS_HOPPER();
  const std::vector<std::vector<std::int64_t>> lists = {
      {-5, 1 << 30, 3, -7}, {100, 50, 20, 0}, {0, 200, 100, 64}, {64, 64, 64, 64}};
  for (GroupAxis axis : {GroupAxis::rows, GroupAxis::inner})
    for (const auto& cuts : lists) {
      Products p(8);
      const std::int64_t total = 64;
      MatmulProblem problem;
      const bool rows = axis == GroupAxis::rows;
      problem.a = p.matrix(DType::bf16, {total, total});
      problem.b = rows ? p.matrix(DType::bf16, {3, total, 40}) : p.matrix(DType::bf16, {total, 40});
      problem.out =
          rows ? p.matrix(DType::bf16, {total, 40}) : p.matrix(DType::bf16, {3, total, 40});
      problem.group_axis = axis;
      problem.group_offsets = p.list(DType::i32, {4}, cuts);
      p.twin().upload();
      for (int row : matmul_rows()) run_by(row, p.moved(problem));
      gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      p.expect_untouched_outside(problem.out, p.twin().download(), "hostile offsets");
    }
}

/// A captured graph, replayed with other values, gives the results of a call.
TEST(GpuMatmulRows, GraphsReplay) {
  SKIP_UNLESS_HOPPER();
  Products p(9);
  MatmulProblem problem;
  problem.a = p.matrix(DType::bf16, {20, 1024});
  problem.b = p.matrix(DType::bf16, {1024, 200}, 1);  // rows of odd length, which are copied first
  problem.out = p.matrix(DType::bf16, {20, 200}, 0, true);
  const MatmulProblem device = p.moved(problem);
  const Plan made = plan(device);
  ASSERT_GT(made.workspace_bytes, 0);
  const Captured graph(made, device);
  for (int i = 0; i < 3; ++i) {
    for (std::int64_t at = 0; at < 20 * 1024; ++at)
      store_from_float(problem.a.dense.data, DType::bf16, at,
                       static_cast<float>(p.random().normal()));
    p.expect_right(problem, "replay", [&](const MatmulProblem&) { graph.launch(); });
  }
}

/// Replays with other patterns in the same buffers: each assigns dynamic tiles again.
TEST(GpuMatmulRows, GraphsReplayWithAnotherPattern) {
  SKIP_UNLESS_HOPPER();
  for (int row : matmul_rows()) {
    if (gpu_test::name_of(row).find("_n256_") == std::string::npos) continue;
    Products p(11, 24);
    const auto pattern = [](std::uint64_t seed) { return patterns::random(24, 12, .25, seed); };
    MatmulProblem problem;
    problem.a = p.bsr(DType::bf16, pattern(1), 64, 64, DType::i32);
    problem.b = p.matrix(DType::bf16, {12 * 64, 3000});
    problem.out = p.matrix(DType::bf16, {24 * 64, 3000}, 0, true);
    const MatmulProblem device = p.moved(problem);
    const Captured graph(gpu_test::plan_by(row, device), device);
    for (std::uint64_t seed : {1, 2, 3}) {
      const Pattern other = pattern(seed);  // the same number of blocks per row
      auto* columns = static_cast<std::int32_t*>(problem.a.sparse.col_indices.data);
      std::copy(other.indices.begin(), other.indices.end(), columns);
      p.expect_right(problem, "pattern " + std::to_string(seed),
                     [&](const MatmulProblem&) { graph.launch(); });
    }
  }
}

TEST(GpuMatmulRows, SameBitsEveryTime) {
  SKIP_UNLESS_HOPPER();
  Products p(10);
  MatmulProblem problem;
  problem.a = p.matrix(DType::bf16, {33, 1500});
  problem.b = p.matrix(DType::bf16, {1500, 264});
  problem.out = p.matrix(DType::f32, {33, 264}, 0, true);
  const std::string first = p.expect_right(problem, "repeat");
  for (int i = 0; i < 5; ++i) EXPECT_EQ(p.expect_right(problem, "repeat"), first);
}

/// The row with the widest tiles, which has dynamic tiles.
int wide_row() {
  for (int row : gpu_test::rows_of("sm90_matmul"))
    if (gpu_test::name_of(row) == "sm90_matmul_m128_n256_k64_s4") return row;
  ADD_FAILURE() << "no sm90_matmul_m128_n256_k64_s4";
  return 0;
}

/// More tiles than thread blocks: tiles are dynamic, and those of long lists come first.
TEST(GpuMatmulRows, UnevenListsInManyTiles) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t block : {64, 128, 192}) {
    Products p(static_cast<std::uint64_t>(block), 24);
    const std::int64_t lines = 1536 / block, deep = 12;
    Pattern pattern = patterns::power_law(lines, deep, .3, 1.2, 5);
    MatmulProblem problem;
    problem.a = p.bsr(DType::bf16, pattern, block, 64, DType::i32);
    problem.b = p.matrix(DType::bf16, {deep * 64, 2900});
    problem.out = p.matrix(DType::bf16, {lines * block, 2900}, 0, true);
    const auto run = [](const MatmulProblem& device) { run_by(wide_row(), device); };
    const std::string first = p.expect_right(problem, "uneven " + std::to_string(block), run);
    EXPECT_EQ(p.expect_right(problem, "again", run), first);
  }
}

/// Unsorted lists are walked too: each entry once, and nothing outside.
TEST(GpuMatmulRows, ListsOutOfOrder) {
  SKIP_UNLESS_HOPPER();
  for (std::int64_t block : {64, 128, 256}) {
    Products p(6, 24);
    const Pattern pattern = patterns::random(6, 50, .5, 3);
    MatmulProblem problem;
    problem.a = p.bsr(DType::bf16, pattern, block, 64, DType::i32);
    auto* columns = static_cast<std::int32_t*>(problem.a.sparse.col_indices.data);
    for (std::size_t row = 0; row < 6; row += 2)
      std::reverse(columns + pattern.offsets[row], columns + pattern.offsets[row + 1]);
    problem.b = p.matrix(DType::bf16, {50 * 64, 264});
    problem.out = p.matrix(DType::bf16, {6 * block, 264}, 0, true);
    p.expect_right(problem, "reversed " + std::to_string(block),
                   [](const MatmulProblem& device) { run_by(wide_row(), device); });
  }
}

}  // namespace
}  // namespace tessera
