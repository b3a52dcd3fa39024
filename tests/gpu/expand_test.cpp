// Dense copies of block-sparse operands: written by prepare, multiplied by each dense kernel row.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/core/check.hpp"
#include "src/problem/expand.hpp"
#include "tests/gpu/products.hpp"
#include "tests/gpu/rows.hpp"

namespace tessera {
namespace {

using gpu_test::Products;
using planning::Order;

constexpr std::int64_t kNoLimit = std::int64_t{1} << 40;
constexpr Order kOrders[] = {Order::rows, Order::columns};

struct Side {
  bool left, transposed;
};
constexpr Side kSides[] = {{true, false}, {true, true}, {false, false}, {false, true}};

/// The sparse matrix on the given side; the dense one has `length` rows or columns of its own.
MatmulProblem problem_of(Products& p, const BsrMatrix& sparse, Side side, std::int64_t length) {
  const DType dtype = sparse.values.dtype;
  Operand operand = sparse;
  operand.transposed = side.transposed;
  const std::int64_t rows = side.transposed ? sparse.cols : sparse.rows;
  const std::int64_t cols = side.transposed ? sparse.rows : sparse.cols;
  MatmulProblem problem;
  (side.left ? problem.a : problem.b) = operand;
  (side.left ? problem.b : problem.a) =
      side.left ? p.matrix(dtype, {cols, length}) : p.matrix(dtype, {length, rows});
  problem.out = side.left ? p.matrix(dtype, {rows, length}, 0, true)
                          : p.matrix(dtype, {length, cols}, 0, true);
  return problem;
}

/// A plan with copies in an order, whose dense product a row computes; none if it cannot.
std::optional<Plan> plan_by(int row, const MatmulProblem& problem, Order order) {
  using namespace planning;  // NOLINT: many names
  const MatmulShape shape = shape_of(problem);
  Expansion expansion;
  if (shape.a.sparse) expansion.a = order;
  if (shape.b.sparse) expansion.b = order;
  const MatmulShape dense =
      expanded_shape(expanded_problem(problem, shape, expansion), shape, expansion);
  const Families families = api::families();
  const FoundRow found = find_row(families, gpu_test::name_of(row));
  const DeviceFacts device = device_facts({DeviceKind::cuda, 0});
  Reasons reasons;
  if (!(found.row->dtypes & core::dtypes({dense.a.dtype}))) return {};
  found.family->refuse(dense, *found.row, device, reasons);
  if (!reasons.none() || (found.family->missing && found.family->missing())) return {};
  Planned planned;
  planned.family = found.family;
  planned.row = found.row;
  planned.shape = dense;
  planned.layout = found.family->layout(dense, *found.row, device, reasons);
  if (!reasons.none()) return {};
  planned.buffers = found.family->buffers(dense, planned.layout, *found.row, 0);
  auto whole = std::make_shared<Planned>(planned);
  whole->dense = std::make_shared<Planned>(planned);
  whole->shape = shape;
  whole->expansion = expansion;
  whole->expanded_bytes = copy_bytes(shape, expansion);
  core::Carver carver;
  carve_expanded(carver, shape, expansion, planned.buffers.schedule);
  whole->buffers.schedule = carver.used();
  return public_plan(families, whole);
}

void prepare_and_run(const Plan& plan, const MatmulProblem& problem) {
  const gpu_test::Room workspace(plan.workspace_bytes), schedule(plan.schedule_bytes);
  const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  prepare(plan, problem, execution);
  run(plan, problem, execution);
  gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// The rows of the dense products of this device.
std::vector<int> dense_rows() {
  std::vector<int> rows = gpu_test::rows_of("sm80_cublaslt");
  if (!gpu_test::on_hopper()) return rows;
  for (const char* family : {"sm90_matmul", "sm90_skinny"})
    for (int row : gpu_test::rows_of(family)) rows.push_back(row);
  return rows;
}

/// Runs a problem with copies by each row, and compares with the oracle. Returns the runs.
int expect_right(Products& p, const MatmulProblem& problem, const std::string& text,
                 const MatmulProblem* given = nullptr) {
  int runs = 0;
  for (int row : dense_rows()) {
    for (const Order order : kOrders) {
      const auto plan = plan_by(row, p.moved(given ? *given : problem), order);
      if (!plan) continue;
      ++runs;
      EXPECT_GT(plan->expanded_bytes, 0);
      p.expect_right(
          problem,
          text + (order == Order::rows ? ", by rows, " : ", by columns, ") + plan->kernel_name,
          [&](const MatmulProblem& device) {
            prepare_and_run(*plan, given ? p.moved(*given) : device);
          });
    }
  }
  return runs;
}

#define SKIP_WITHOUT_ROWS()                                 \
  if (!gpu_test::on_hopper() && cublaslt_version().empty()) \
  GTEST_SKIP() << "no dense product runs here"

TEST(GpuExpand, EverySideBlockAndDtype) {
  SKIP_WITHOUT_ROWS();
  int runs = 0;
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32})
    for (const std::int64_t block : {16, 24, 64, 128})
      for (const Side& side : kSides)
        for (const std::int64_t length : {1, 40, 200}) {
          Products p(static_cast<std::uint64_t>(block + length));
          const Pattern pattern =
              patterns::random(2 + 200 / block, 3 + 100 / block, 0.5, p.random().bits());
          const BsrMatrix sparse = p.bsr(dtype, pattern, block, block, DType::i32);
          runs += expect_right(p, problem_of(p, sparse, side, length),
                               std::string(to_string(dtype)) + " block " + std::to_string(block));
        }
  EXPECT_GT(runs, 0);
}

TEST(GpuExpand, ThePlannerExpandsManyTokensAtHighDensity) {
  SKIP_UNLESS_HOPPER();
  Products p(31, 24);
  const BsrMatrix sparse = p.bsr(DType::bf16, patterns::random(64, 64, 0.5, 1), 16, 16, DType::i32);
  const MatmulProblem problem = problem_of(p, sparse, {false, true}, 1000);
  const MatmulProblem device = p.moved(problem);
  constexpr std::int64_t kBytes = 1024 * 1024 * 2;
  EXPECT_EQ(plan(device, {.expand_bytes = kBytes - 1}).expanded_bytes, 0);
  const Plan made = plan(device, {.expand_bytes = kBytes});
  EXPECT_EQ(made.expanded_bytes, kBytes) << made.kernel_name;
  EXPECT_GE(made.schedule_bytes, kBytes);
  p.expect_right(problem, made.kernel_name,
                 [&](const MatmulProblem& given) { prepare_and_run(made, given); });
}

TEST(GpuExpand, HostileLists) {
  SKIP_WITHOUT_ROWS();
  for (const DType index : {DType::i32, DType::i64})
    for (const Pattern& pattern : Products::hostile_patterns(index))
      for (const std::int64_t block : {16, 64}) {
        for (const Side& side : kSides) {
          Products p(32);
          const auto sparse = p.hostile(DType::bf16, index, pattern, block, block);
          const MatmulProblem problem = problem_of(p, sparse.as_read, side, 40);
          MatmulProblem given = problem;
          (side.left ? given.a : given.b).sparse = sparse.as_given;
          expect_right(p, problem, "hostile lists", &given);
        }
      }
}

TEST(GpuExpand, ListsOutOfOrderAndBlocksNamedTwice) {
  SKIP_WITHOUT_ROWS();
  Products p(33);
  BsrMatrix sparse = p.bsr(DType::bf16, {2, 4, {0, 3, 5}, {0, 1, 3, 0, 2}}, 16, 32, DType::i32);
  auto* const columns = static_cast<std::int32_t*>(sparse.col_indices.data);
  std::swap(columns[0], columns[2]);
  expect_right(p, problem_of(p, sparse, {true, false}, 50), "out of order");

  // Of a block that is named twice, the first one counts.
  MatmulProblem twice = problem_of(p, sparse, {true, false}, 50);
  const BsrMatrix first = p.bsr(DType::bf16, {2, 4, {0, 2, 4}, {0, 1, 0, 2}}, 16, 32, DType::i32);
  const std::size_t each = 16 * 32 * 2;
  const auto block_of = [&](const BsrMatrix& m, std::size_t i) {
    return static_cast<char*>(m.values.data) + i * each;
  };
  columns[0] = columns[2] = 0, columns[1] = 1;
  const std::size_t kept[] = {0, 1, 3, 4};
  for (std::size_t i = 0; i < 4; ++i)
    std::memcpy(block_of(first, i), block_of(sparse, kept[i]), each);
  MatmulProblem once = twice;
  once.a.sparse = first;
  expect_right(p, once, "named twice", &twice);
}

TEST(GpuExpand, BatchesAndGroups) {
  SKIP_WITHOUT_ROWS();
  constexpr std::int64_t kBatch = 3, kBlock = 32;
  Products p(34);
  BsrMatrix sparse = p.bsr(DType::f16, patterns::random(4, 6, 0.5, 5), kBlock, kBlock, DType::i32);
  const std::int64_t stored = sparse.stored_blocks();
  const BsrMatrix all =
      p.bsr(DType::f16, patterns::random(4 * kBatch, 6, 0.5, 5), kBlock, kBlock, DType::i32);
  sparse.values = tensor(all.values.data, DType::f16, {kBatch, stored, kBlock, kBlock});
  MatmulProblem problem = problem_of(p, sparse, {true, false}, 40);
  problem.out = p.matrix(DType::f16, {kBatch, 4 * kBlock, 40}, 0, true);
  EXPECT_GT(expect_right(p, problem, "batch"), 0);
  if (!gpu_test::on_hopper()) return;  // cuBLASLt knows no groups

  MatmulProblem grouped;
  grouped.a = p.matrix(DType::f16, {100, 4 * kBlock});
  grouped.b = sparse;
  grouped.out = p.matrix(DType::f16, {100, 6 * kBlock}, 0, true);
  grouped.group_offsets = p.list(DType::i32, {kBatch + 1}, {0, 30, 30, 100});
  EXPECT_GT(expect_right(p, grouped, "groups"), 0);
}

/// A graph of prepare and run uses the lists and values of the time of its replay.
TEST(GpuExpand, AReplayedGraphExpandsAgain) {
  SKIP_UNLESS_HOPPER();
  Products p(35);
  const BsrMatrix sparse = p.bsr(DType::bf16, patterns::random(8, 8, 0.5, 1), 32, 32, DType::i32);
  const MatmulProblem problem = problem_of(p, sparse, {false, true}, 60);
  for (int row : gpu_test::rows_of("sm90_matmul")) {
    const auto plan = plan_by(row, p.moved(problem), Order::rows);
    if (!plan) continue;
    const gpu_test::Captured graph(*plan, p.moved(problem));
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const Pattern pattern = patterns::random(8, 8, 0.5, seed);
      for (std::size_t i = 0; i < pattern.indices.size(); ++i)
        static_cast<std::int32_t*>(sparse.col_indices.data)[i] =
            static_cast<std::int32_t>(pattern.indices[i]);
      for (std::int64_t i = 0; i < sparse.values.numel(); ++i)
        store_from_float(sparse.values.data, DType::bf16, i,
                         static_cast<float>(p.random().normal()));
      p.expect_right(problem, plan->kernel_name + " replayed",
                     [&](const MatmulProblem&) { graph.launch(); });
    }
  }
}

TEST(GpuExpand, AnEpilogueThatABlasLacksIsRefused) {
  if (cublaslt_version().empty()) GTEST_SKIP() << "cuBLASLt is not found";
  Products p(36);
  const BsrMatrix sparse = p.bsr(DType::bf16, patterns::random(8, 8, 0.5, 1), 32, 32, DType::i32);
  MatmulProblem problem = p.moved(problem_of(p, sparse, {false, true}, 60));
  const auto plan = plan_by(gpu_test::rows_of("sm80_cublaslt").front(), problem, Order::rows);
  ASSERT_TRUE(plan);
  p.twin().upload();
  const gpu_test::Room workspace(plan->workspace_bytes), schedule(plan->schedule_bytes);
  const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  prepare(*plan, problem, execution);
  problem.epilogue.activation = Activation::relu;
  try {
    run(*plan, problem, execution);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("plan again"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera
