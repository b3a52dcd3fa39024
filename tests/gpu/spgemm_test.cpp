#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/products.hpp"

namespace tessera {
namespace {

using generate::Random;
using gpu_test::Products;

/// A product and the memory of its result on the host, with a copy on the GPU.
struct Case {
  Products p;
  SpgemmProblem problem;
  BsrMatrix out;
  std::string text;

  explicit Case(std::uint64_t seed) : p(seed) {}
  Case(std::uint64_t seed, std::size_t megabytes) : p(seed, megabytes) {}

  BsrMatrix on_device(const BsrMatrix& matrix) { return p.moved(Operand(matrix)).sparse; }
  SpgemmProblem device_problem() {
    SpgemmProblem device = problem;
    device.a = p.moved(problem.a);
    device.b = p.moved(problem.b);
    return device;
  }
  /// Makes a result for `pattern`. `listed`: its lists are given, else the run writes them.
  void make_out(const Pattern& pattern, DType dtype, DType index, bool listed) {
    const BsrMatrix &a = problem.a.sparse, &b = problem.b.sparse;
    out = p.bsr(dtype, pattern, problem.a.transposed ? a.block_cols() : a.block_rows(),
                problem.b.transposed ? b.block_rows() : b.block_cols(), index);
    if (problem.beta == 0.0f)
      for (std::int64_t i = 0; i < out.values.numel(); ++i)
        store_from_float(out.values.data, dtype, i, std::numeric_limits<float>::quiet_NaN());
    if (listed) return;
    for (const Tensor& list : {out.row_offsets, out.col_indices})
      oracle::write(list, oracle::DenseArray({list.size(0)}, -7.0));
  }
  /// Compares the GPU's result with the oracle. Returns its bytes.
  std::string compare(const Pattern& pattern, const oracle::DenseArray& former) {
    gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<std::byte> copy = p.twin().download();
    BsrMatrix answer = out;
    for (Tensor* t : {&answer.values, &answer.row_offsets, &answer.col_indices})
      *t = p.twin().inside(*t, copy);
    const auto whole = [](const Tensor& list) {
      const std::vector<double> values = oracle::read(list).values;
      return std::vector<std::int64_t>(values.begin(), values.end());
    };
    EXPECT_EQ(whole(answer.row_offsets), pattern.offsets) << text;
    EXPECT_EQ(whole(answer.col_indices), pattern.indices) << text;
    if (::testing::Test::HasFailure()) return {};
    const oracle::Comparison result = oracle::check(problem, answer, &former);
    EXPECT_TRUE(result.ok) << text << ": " << result.message;
    return std::string(reinterpret_cast<const char*>(copy.data()), copy.size());
  }

  /// Runs the symbolic step, then the numeric step into memory of the sizes that the plan gives.
  std::string expect_planned(DType dtype, DType index) {
    const Pattern expected = oracle::spgemm_pattern(problem);
    make_out(expected, dtype, index, false);
    const oracle::DenseArray former = oracle::read(out.values);
    p.twin().upload();
    try {
      const SpgemmProblem device = device_problem();
      const SpgemmPlan plan = spgemm_symbolic(device);
      EXPECT_EQ(plan.stored_blocks(), expected.stored()) << text;
      EXPECT_EQ(plan.rows(), out.rows) << text;
      EXPECT_EQ(plan.cols(), out.cols) << text;
      if (::testing::Test::HasFailure()) return {};
      spgemm_numeric(plan, device, on_device(out));
      return compare(expected, former);
    } catch (const Error& error) {
      ADD_FAILURE() << text << ": refused: " << error.what();
      return {};
    }
  }
  /// Runs the numeric step into a given pattern.
  void expect_given(const Pattern& pattern, DType dtype, DType index) {
    make_out(pattern, dtype, index, true);
    const oracle::DenseArray former = oracle::read(out.values);
    p.twin().upload();
    try {
      spgemm_numeric(device_problem(), on_device(out));
      compare(pattern, former);
    } catch (const Error& error) {
      ADD_FAILURE() << text << ": refused: " << error.what();
    }
  }
};

/// Row 1 is full; row 2 and column 3 are empty.
Pattern with_gaps(std::int64_t rows, std::int64_t cols, double density, Random& random) {
  Pattern pattern{rows, cols, {0}, {}};
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j)
      if (i == 1 || (i != 2 && j != 3 && random.chance(density))) pattern.indices.push_back(j);
    pattern.offsets.push_back(pattern.stored());
  }
  return pattern;
}

struct Shape {
  std::int64_t r, d, c;  // blocks: r x d times d x c
  std::int64_t m, k, n;  // sizes in blocks
  bool ta = false, tb = false;
};

void fill(Case& c, DType dtype, const Shape& s, DType index, double density = 0.3) {
  const auto operand = [&](std::int64_t rows, std::int64_t cols, std::int64_t r, std::int64_t q,
                           bool transposed) {
    Operand o(transposed
                  ? c.p.bsr(dtype, with_gaps(cols, rows, density, c.p.random()), q, r, index)
                  : c.p.bsr(dtype, with_gaps(rows, cols, density, c.p.random()), r, q, index));
    o.transposed = transposed;
    return o;
  };
  c.problem.a = operand(s.m, s.k, s.r, s.d, s.ta);
  c.problem.b = operand(s.k, s.n, s.d, s.c, s.tb);
  c.text = std::string(to_string(dtype)) + " blocks " + std::to_string(s.r) + "x" +
           std::to_string(s.d) + "x" + std::to_string(s.c) + " grid " + std::to_string(s.m) + "x" +
           std::to_string(s.k) + "x" + std::to_string(s.n) + (s.ta ? " A^T" : "") +
           (s.tb ? " B^T" : "");
}

constexpr DType kTypes[] = {DType::bf16, DType::f16, DType::f32};

TEST(GpuSpgemm, EveryBlockTypeAndTranspose) {
  for (DType dtype : kTypes)
    for (std::int64_t block : {16, 32, 64, 128})
      for (int forms = 0; forms < 4; ++forms) {
        if (dtype == DType::f32 && block > 32) continue;  // the same kernel as f16 at 32
        const std::int64_t grid = block == 128 ? 4 : block == 64 ? 7 : 12;
        Case c(static_cast<std::uint64_t>(block + forms));
        fill(c, dtype, {block, block, block, grid, grid + 1, grid + 2, forms % 2 == 1, forms > 1},
             forms % 2 ? DType::i64 : DType::i32);
        c.expect_planned(dtype, forms > 1 ? DType::i64 : DType::i32);
      }
}

TEST(GpuSpgemm, OddAndRectangularBlocks) {
  const std::int64_t blocks[][3] = {{64, 128, 64}, {128, 64, 128}, {64, 64, 128}, {128, 128, 64},
                                    {48, 16, 80},  {1, 1, 1},      {7, 33, 5},    {64, 192, 64}};
  for (const auto& [r, d, k] : blocks)
    for (int forms = 0; forms < 4; ++forms) {
      Case c(static_cast<std::uint64_t>(r + d + k + forms));
      fill(c, DType::bf16, {r, d, k, 4, 5, 4, forms % 2 == 1, forms > 1}, DType::i32);
      c.expect_planned(DType::bf16, DType::i32);
    }
}

TEST(GpuSpgemm, LongRowsAndManyRuns) {
  // Rows of A with more blocks than one batch of steps has, and more runs than one tile has.
  for (std::int64_t block : {16, 64}) {
    Case c(5);
    fill(c, DType::bf16, {block, block, block, 3, 45, 21}, DType::i32, 0.5);
    c.expect_planned(DType::bf16, DType::i32);
  }
}

TEST(GpuSpgemm, ResultTypesAlphaAndBeta) {
  for (DType out : kTypes)
    for (std::int64_t block : {32, 64, 128})
      for (int kind = 0; kind < 3; ++kind) {
        Case c(static_cast<std::uint64_t>(block + kind));
        fill(c, DType::f16, {block, block, block, 4, 4, 5}, DType::i32);
        if (kind > 0) c.problem.alpha = -0.75f;
        if (kind > 1) c.problem.beta = 0.5f;
        c.text += std::string(" kind ") + std::to_string(kind) + " into " + to_string(out);
        c.expect_planned(out, DType::i32);
      }
}

TEST(GpuSpgemm, ValuesAtAGivenPattern) {
  for (std::int64_t block : {16, 64, 128})
    for (DType index : {DType::i32, DType::i64})
      for (int forms = 0; forms < 4; ++forms)
        for (double density : {0.0, 0.4, 1.0}) {
          Case c(static_cast<std::uint64_t>(block + forms));
          fill(c, DType::bf16, {block, block, block, 5, 4, 6, forms % 2 == 1, forms > 1}, index);
          c.problem.beta = forms == 3 ? 1.5f : 0.0f;
          c.text += " given " + std::to_string(density);
          Pattern pattern = with_gaps(5, 6, density, c.p.random());
          c.expect_given(pattern, DType::bf16, index);
        }
}

TEST(GpuSpgemm, NothingStored) {
  for (std::int64_t block : {32, 64})
    for (int which = 0; which < 2; ++which) {
      Case c(1);
      fill(c, DType::bf16, {block, block, block, 3, 4, 5}, DType::i32);
      Operand& emptied = which ? c.problem.b : c.problem.a;
      const Pattern none =
          which ? Pattern{4, 5, {0, 0, 0, 0, 0}, {}} : Pattern{3, 4, {0, 0, 0, 0}, {}};
      emptied = c.p.bsr(DType::bf16, none, block, block, DType::i32);
      c.expect_planned(DType::bf16, DType::i32);
      c.expect_given(with_gaps(3, 5, 0.5, c.p.random()), DType::bf16, DType::i32);
    }
}

TEST(GpuSpgemm, SameBitsEveryTime) {
  for (std::int64_t block : {32, 64, 128}) {
    const auto once = [&] {
      Case c(11);
      fill(c, DType::bf16, {block, block, block, 6, 6, 6}, DType::i32);
      return c.expect_planned(DType::bf16, DType::i32);
    };
    const std::string first = once();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(once(), first) << block;
  }
}

/// More tiles than thread blocks, so that each thread block takes several. Both forms of the
/// numeric step, and the same bits again.
TEST(GpuSpgemm, ManyTiles) {
  const Shape shapes[] = {{128, 128, 128, 300, 1, 2},
                          {64, 64, 64, 48, 3, 48},
                          {64, 64, 64, 2200, 1, 1},
                          {64, 64, 64, 3, 2, 500, true},
                          {64, 64, 64, 40, 2, 60, false, true}};
  for (const Shape& shape : shapes) {
    const auto once = [&] {
      Case c(17, 64);
      fill(c, DType::bf16, shape, DType::i32, 0.5);
      return c.expect_planned(DType::bf16, DType::i32);
    };
    EXPECT_EQ(once(), once());
    Case c(18, 64);
    fill(c, DType::bf16, shape, DType::i32, 0.5);
    c.expect_given(with_gaps(shape.m, shape.n, 0.4, c.p.random()), DType::bf16, DType::i32);
  }
}

TEST(GpuSpgemm, MoreBlocksThanAreSortedAtATime) {
  Case c(19, 160);
  fill(c, DType::bf16, {128, 64, 128, 2200, 1, 1}, DType::i32, 1.0);
  c.expect_planned(DType::bf16, DType::i32);
}

/// A replay uses the values and patterns that the buffers hold at that time.
TEST(GpuSpgemm, ACapturedGraphTakesNewValuesAndPatterns) {
  for (int forms = 0; forms < 4; ++forms) {
    const std::int64_t block = forms < 2 ? 64 : 128;
    const bool transposed = forms % 2 != 0;
    Case c(21);
    fill(c, DType::bf16, {block, block, block, 5, 5, 5, transposed}, DType::i32);
    c.make_out(with_gaps(5, 5, 0.5, c.p.random()), DType::bf16, DType::i32, true);
    c.p.twin().upload();
    const SpgemmProblem problem = c.device_problem();
    const BsrMatrix out = c.on_device(c.out);
    cudaStream_t stream{};
    gpu_test::check(cudaStreamCreate(&stream), "cudaStreamCreate");
    spgemm_numeric(problem, out, {.stream = stream});
    gpu_test::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    cudaGraph_t graph{};
    cudaGraphExec_t replay{};
    gpu_test::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    spgemm_numeric(problem, out, {.stream = stream});
    gpu_test::check(cudaStreamEndCapture(stream, &graph), "capture");
    gpu_test::check(cudaGraphInstantiate(&replay, graph, 0), "cudaGraphInstantiate");
    // Moves the blocks of the result and of A within their rows.
    const auto move = [](const BsrMatrix& m) {
      auto* columns = static_cast<std::int32_t*>(m.col_indices.data);
      const auto* offsets = static_cast<const std::int32_t*>(m.row_offsets.data);
      for (std::int64_t row = 0; row + 1 < m.row_offsets.size(0); ++row)
        for (std::int32_t e = offsets[row]; e < offsets[row + 1]; ++e)
          columns[e] = e - offsets[row];
    };
    move(c.out);
    move(c.problem.a.sparse);
    for (std::int64_t i = 0; i < c.problem.b.sparse.values.numel(); ++i)
      store_from_float(c.problem.b.sparse.values.data, DType::bf16, i,
                       static_cast<float>(c.p.random().normal()));
    c.p.twin().upload();
    gpu_test::check(cudaGraphLaunch(replay, stream), "cudaGraphLaunch");
    Pattern pattern{5, 5, {}, {}};
    for (double v : oracle::read(c.out.row_offsets).values)
      pattern.offsets.push_back(static_cast<std::int64_t>(v));
    for (double v : oracle::read(c.out.col_indices).values)
      pattern.indices.push_back(static_cast<std::int64_t>(v));
    c.compare(pattern, oracle::read(c.out.values));
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

/// Lists on a device are not checked. Whatever they hold, only the result changes.
TEST(GpuSpgemm, HostileListsLeadNowhere) {
  for (std::int64_t block : {32, 64, 128})
    for (int forms = 0; forms < 4; ++forms)
      for (int kind = 0; kind < 3; ++kind) {
        Case c(static_cast<std::uint64_t>(31 + kind));
        fill(c, DType::bf16, {block, block, block, 5, 5, 5, forms % 2 == 1, forms > 1}, DType::i32);
        c.make_out(with_gaps(5, 5, 0.5, c.p.random()), DType::bf16, DType::i32, true);
        const auto spoil = [&](const Tensor& list) {
          auto* entries = static_cast<std::int32_t*>(list.data);
          for (std::int64_t i = 0; i < list.size(0); ++i) {
            const double place = c.p.random().uniform();
            entries[i] = kind == 0   ? static_cast<std::int32_t>(place * 5)
                         : kind == 1 ? static_cast<std::int32_t>((place - 0.5) * 4e9)
                                     : entries[list.size(0) - 1 - i];
          }
        };
        for (const BsrMatrix* m : {&c.problem.a.sparse, &c.problem.b.sparse, &c.out}) {
          spoil(m->row_offsets);
          spoil(m->col_indices);
        }
        c.p.twin().upload();
        const SpgemmProblem problem = c.device_problem();
        EXPECT_NO_THROW({
          const SpgemmPlan plan = spgemm_symbolic(problem);
          EXPECT_GE(plan.stored_blocks(), 0);
          EXPECT_LE(plan.stored_blocks(), 25);
          spgemm_numeric(problem, c.on_device(c.out));
        });
        gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        c.p.expect_untouched_outside(c.out.values, c.p.twin().download(), "hostile lists");
      }
}

TEST(GpuSpgemm, PlansAreForTheirProblemAndMayBeMoved) {
  Case c(2);
  fill(c, DType::bf16, {64, 64, 64, 4, 4, 4}, DType::i32);
  c.make_out(oracle::spgemm_pattern(c.problem), DType::bf16, DType::i32, false);
  c.p.twin().upload();
  const SpgemmProblem problem = c.device_problem();
  SpgemmPlan plan = spgemm_symbolic(problem);
  SpgemmProblem other = problem;
  other.b.transposed = true;
  EXPECT_THROW(spgemm_numeric(plan, other, c.on_device(c.out)), Error);
  const SpgemmPlan taken = std::move(plan);
  EXPECT_EQ(plan.stored_blocks(), 0);  // NOLINT: tests the moved-from state
  EXPECT_THROW(spgemm_numeric(plan, problem, c.on_device(c.out)), Error);
  EXPECT_NO_THROW(spgemm_numeric(taken, problem, c.on_device(c.out)));
  gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace
}  // namespace tessera
