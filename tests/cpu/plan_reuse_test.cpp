#include <functional>
#include <memory>
#include <vector>

#include "tests/fixtures/expect.hpp"

// Plan once, prepare for each pattern, and run for each set of values, in the caller's buffers.
namespace tessera {
namespace {

using expect::Scratch;
using generate::Layout;
using generate::Memory;
using generate::Random;

/// Plans once, then changes the problem, prepares, runs and checks a few times in the same buffers.
/// Returns the bytes of the schedule.
std::int64_t reuse(const AnyProblem& problem, const std::function<void()>& new_pattern,
                   const std::function<void()>& new_values,
                   const std::function<oracle::Comparison()>& check) {
  const Plan made = plan(problem, {.threads = 2});
  const Scratch workspace(made.workspace_bytes), schedule(made.schedule_bytes);
  const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  const auto run_and_check = [&] {
    run(made, problem, execution);
    const oracle::Comparison result = check();
    EXPECT_TRUE(result.ok) << result.message;
  };
  for (int round = 0; round < 4; ++round) {
    new_pattern();
    new_values();
    prepare(made, problem, execution);
    run_and_check();
    // New values with the same pattern need no prepare.
    new_values();
    run_and_check();
  }
  return made.schedule_bytes;
}

/// Overwrites a BSR matrix's lists with those of another pattern of the same number of blocks.
void write_lists(const BsrMatrix& matrix, const Pattern& pattern) {
  ASSERT_EQ(pattern.stored(), matrix.stored_blocks());
  const auto write = [](const Tensor& list, const std::vector<std::int64_t>& values) {
    oracle::DenseArray array({static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), array.values.begin());
    oracle::write(list, array);
  };
  write(matrix.row_offsets, pattern.offsets);
  write(matrix.col_indices, pattern.indices);
}

/// A pattern of 8 x 10 blocks, always with the same number of blocks: 4 per row, or 3 per column.
Pattern drawn(Random& random, bool by_columns) {
  if (!by_columns) return patterns::random(8, 10, 0.4, random.bits());
  return transpose(patterns::random(10, 8, 0.4, random.bits()));
}

class PlanReuse : public ::testing::TestWithParam<DType> {};

TEST_P(PlanReuse, SparseTimesDense) {
  Random random(1);
  for (bool transposed : {false, true}) {
    Memory memory(random);
    const HostBsr a = make_bsr(drawn(random, false), 16, 8, GetParam());
    MatmulProblem problem;
    problem.a = a.view();
    problem.a.transposed = transposed;
    const Tensor b = memory.input(GetParam(), {transposed ? 128 : 80, 50}, Layout::contiguous);
    problem.b = b;
    problem.out = memory.output(GetParam(), {transposed ? 80 : 128, 50}, Layout::contiguous);
    const std::int64_t bytes = reuse(
        problem, [&] { write_lists(a.view(), drawn(random, false)); },
        [&] {
          memory.fill_normal(a.values);
          memory.fill_normal(b);
        },
        [&] { return oracle::check(problem); });
    EXPECT_GT(bytes, 0);
  }
}

TEST_P(PlanReuse, SparseTimesSparse) {
  Random random(2);
  Memory memory(random);
  const HostBsr a = make_bsr(drawn(random, false), 4, 8, GetParam());
  const HostBsr b = make_bsr(drawn(random, true), 10, 16, GetParam());
  MatmulProblem problem{.a = a.view(), .b = b.view()};
  problem.out = memory.output(DType::f32, {32, 160}, Layout::contiguous);
  reuse(
      problem,
      [&] {
        write_lists(a.view(), drawn(random, false));
        write_lists(b.view(), drawn(random, true));
      },
      [&] {
        memory.fill_normal(a.values);
        memory.fill_normal(b.values);
      },
      [&] { return oracle::check(problem); });
}

TEST_P(PlanReuse, Sddmm) {
  Random random(3);
  Memory memory(random);
  const HostBsr out = make_bsr(drawn(random, false), 8, 16, GetParam());
  const Tensor a = memory.input(GetParam(), {64, 40}, Layout::contiguous);
  const Tensor b = memory.input(GetParam(), {40, 160}, Layout::contiguous);
  const SddmmProblem problem{.a = a, .b = b, .out = out.view()};
  reuse(
      problem, [&] { write_lists(out.view(), drawn(random, false)); },
      [&] {
        memory.fill_normal(a);
        memory.fill_normal(b);
      },
      [&] { return oracle::check(problem); });
}

/// Masked attention whose lists can be redrawn in place: their capacity is enough for any pattern.
struct Masked {
  Random random{4};
  Memory memory{random};
  Tensor counts, indices;
  AttentionProblem problem;

  explicit Masked(DType dtype) {
    AttentionProblem& p = problem;
    p.q = memory.input(dtype, {2, 100, 4, 24}, Layout::contiguous);
    p.k = memory.input(dtype, {2, 90, 2, 24}, Layout::contiguous);
    p.v = memory.input(dtype, {2, 90, 2, 24}, Layout::contiguous);
    p.out = memory.output(dtype, {2, 100, 4, 24}, Layout::contiguous);
    p.lse = memory.output(DType::f32, {2, 4, 100}, Layout::contiguous);
    p.causal = true;
    p.mask.block_q = p.mask.block_kv = 16;
    counts = memory.list(DType::i32, {1, 4, 7}, std::vector<std::int64_t>(28));
    indices = memory.list(DType::i32, {1, 4, 7, 6}, std::vector<std::int64_t>(168));
    p.mask.full = {.counts = counts, .offsets = {}, .indices = indices};
  }
  void new_pattern() {
    oracle::DenseArray sizes({1, 4, 7}), blocks({1, 4, 7, 6}, -1.0);
    for (std::int64_t row = 0; row < 28; ++row) {
      for (std::int64_t block = 0; block < 6; ++block) {
        if (random.chance(0.5)) continue;
        const auto at = static_cast<std::size_t>(row);
        blocks.values[at * 6 + static_cast<std::size_t>(sizes.values[at]++)] =
            static_cast<double>(block);
      }
    }
    oracle::write(counts, sizes);
    oracle::write(indices, blocks);
  }
  void new_values() {
    for (const Tensor& tensor : {problem.q, problem.k, problem.v}) memory.fill_normal(tensor);
  }
};

TEST_P(PlanReuse, MaskedAttention) {
  Masked masked(GetParam());
  reuse(
      masked.problem, [&] { masked.new_pattern(); }, [&] { masked.new_values(); },
      [&] { return oracle::check(masked.problem); });
}

TEST_P(PlanReuse, MaskedAttentionBackward) {
  Masked masked(GetParam());
  AttentionBackwardProblem problem{.forward = masked.problem};
  Memory& memory = masked.memory;
  problem.dout = memory.input(GetParam(), {2, 100, 4, 24}, Layout::contiguous);
  problem.dq = memory.output(GetParam(), {2, 100, 4, 24}, Layout::contiguous);
  problem.dk = memory.output(GetParam(), {2, 90, 2, 24}, Layout::contiguous);
  problem.dv = memory.output(GetParam(), {2, 90, 2, 24}, Layout::contiguous);
  reuse(
      problem, [&] { masked.new_pattern(); },
      [&] {
        masked.new_values();
        memory.fill_normal(problem.dout);
        const oracle::Attention forward = oracle::attention(masked.problem);
        oracle::write(masked.problem.out, forward.out);
        oracle::write(masked.problem.lse, forward.lse);
      },
      [&] { return oracle::check(problem); });
}

INSTANTIATE_TEST_SUITE_P(Types, PlanReuse, ::testing::Values(DType::f32, DType::f16, DType::bf16),
                         [](const auto& param) { return to_string(param.param); });

// ---- What run and prepare refuse

void expect_refused(const std::function<void()>& call, const std::string& argument,
                    const Memory& memory) {
  try {
    call();
    ADD_FAILURE() << "not refused, expected a message about " << argument;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    EXPECT_NE(std::string(error.what()).find(argument), std::string::npos) << error.what();
  }
  EXPECT_TRUE(memory.untouched());
}

TEST(PlanSteps, RunRequiresAPreparedSchedule) {
  Masked masked(DType::f32);
  masked.new_pattern();
  masked.new_values();
  const Plan made = plan(masked.problem);
  ASSERT_GT(made.schedule_bytes, 0);
  masked.memory.arm();
  expect_refused([&] { run(made, masked.problem, {}); }, "schedule", masked.memory);
  expect_refused([&] { prepare(made, masked.problem, {}); }, "schedule", masked.memory);

  // Large enough, but never written by prepare.
  const Scratch stale(made.schedule_bytes);
  expect_refused([&] { run(made, masked.problem, {.schedule = stale.buffer()}); }, "never prepared",
                 masked.memory);
}

TEST(PlanSteps, BuffersMustBeLargeEnoughAndAligned) {
  Masked masked(DType::f32);
  masked.new_pattern();
  masked.new_values();
  const Plan made = plan(masked.problem);
  const Scratch workspace(made.workspace_bytes + 128), schedule(made.schedule_bytes + 128);
  const Execution good{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  prepare(made, masked.problem, good);
  masked.memory.arm();
  Execution bad = good;
  bad.schedule.bytes = made.schedule_bytes - 1;
  expect_refused([&] { run(made, masked.problem, bad); }, "schedule", masked.memory);
  expect_refused([&] { prepare(made, masked.problem, bad); }, "schedule", masked.memory);
  bad = good;
  bad.schedule.data = static_cast<char*>(good.schedule.data) + 4;
  expect_refused([&] { run(made, masked.problem, bad); }, "schedule", masked.memory);
  if (made.workspace_bytes == 0) return;
  bad = good;
  bad.workspace.bytes = made.workspace_bytes - 1;
  expect_refused([&] { run(made, masked.problem, bad); }, "workspace", masked.memory);
  bad = good;
  bad.workspace.data = static_cast<char*>(good.workspace.data) + 4;
  expect_refused([&] { run(made, masked.problem, bad); }, "workspace", masked.memory);
}

TEST(PlanSteps, APlanFitsItsOwnSignatureOnly) {
  Random random(5);
  Memory memory(random);
  const auto product = [&](DType dtype, std::int64_t rows) {
    MatmulProblem problem;
    problem.a = memory.input(dtype, {rows, 16}, Layout::contiguous);
    problem.b = memory.input(dtype, {16, 24}, Layout::contiguous);
    problem.out = memory.output(dtype, {rows, 24}, Layout::contiguous);
    memory.fill_normal(problem.a.dense);
    memory.fill_normal(problem.b.dense);
    return problem;
  };
  const MatmulProblem small = product(DType::f32, 8);
  const MatmulProblem large = product(DType::f32, 800);
  const MatmulProblem half = product(DType::f16, 8);
  const Plan made = plan(small);
  memory.arm();
  expect_refused([&] { run(made, large, {}); }, "plan", memory);
  expect_refused([&] { run(made, half, {}); }, "plan", memory);
  expect_refused([&] { run(made, SddmmProblem{}, {}); }, "sddmm", memory);
  Masked masked(DType::f32);
  masked.new_pattern();
  expect_refused([&] { run(made, masked.problem, {}); }, "plan", memory);
  expect_refused([&] { prepare(made, masked.problem, {}); }, "plan", memory);
  run(made, small, {});
  const oracle::Comparison result = oracle::check(small);
  EXPECT_TRUE(result.ok) << result.message;
}

TEST(PlanSteps, AnEmptyPlanIsRefused) {
  Masked masked(DType::f32);
  masked.new_pattern();
  masked.new_values();
  masked.memory.arm();
  expect_refused([&] { run(Plan{}, masked.problem, {}); }, "plan", masked.memory);
  expect_refused([&] { prepare(Plan{}, masked.problem, {}); }, "plan", masked.memory);
}

TEST(PlanSteps, AnEmptySpgemmPlanIsRefused) {
  const auto c = generate::spgemm_case(1, {.dtype = DType::f32});
  const BsrMatrix out = output_for(*c, oracle::spgemm_pattern(c->problem), DType::f32, DType::i32);
  c->memory.arm();
  expect_refused([&] { spgemm_numeric(SpgemmPlan(), c->problem, out); }, "plan", c->memory);
}

TEST(PlanSteps, PrepareReadsOnlyLists) {
  Masked masked(DType::f32);
  masked.new_pattern();
  masked.new_values();
  const Plan made = plan(masked.problem);
  const Scratch workspace(made.workspace_bytes), schedule(made.schedule_bytes);
  const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  AttentionProblem lists = masked.problem;
  for (Tensor* tensor : {&lists.q, &lists.k, &lists.v, &lists.out, &lists.lse})
    tensor->data = nullptr;
  prepare(made, lists, execution);
  run(made, masked.problem, execution);
  oracle::Comparison result = oracle::check(masked.problem);
  EXPECT_TRUE(result.ok) << result.message;
  EXPECT_THROW(run(made, lists, execution), Error);
  lists.mask.full.counts.data = nullptr;
  EXPECT_THROW(prepare(made, lists, execution), Error);

  Random random(6);
  Memory memory(random);
  const HostBsr a = make_bsr(drawn(random, false), 16, 8, DType::f32);
  MatmulProblem product;
  product.a = a.view();
  product.b = memory.input(DType::f32, {80, 50}, Layout::contiguous);
  product.out = memory.output(DType::f32, {128, 50}, Layout::contiguous);
  memory.fill_normal(a.values);
  memory.fill_normal(product.b.dense);
  const Plan planned = plan(product);
  const Scratch room(planned.schedule_bytes), scratch(planned.workspace_bytes);
  const Execution how{.workspace = scratch.buffer(), .schedule = room.buffer()};
  MatmulProblem no_memory = product;
  no_memory.b.dense.data = no_memory.out.data = nullptr;
  prepare(planned, no_memory, how);
  run(planned, product, how);
  result = oracle::check(product);
  EXPECT_TRUE(result.ok) << result.message;
}

TEST(PlanSteps, ScratchComesFromTheCallersSource) {
  Masked masked(DType::f32);
  masked.new_pattern();
  masked.new_values();
  const Plan made = plan(masked.problem);
  struct Source {
    std::vector<std::int64_t> asked;
    std::vector<std::unique_ptr<Scratch>> given;
    std::int64_t shift = 0;
  } source;
  Execution execution;
  execution.scratch = {[](void* context, std::int64_t bytes) -> void* {
                         auto& from = *static_cast<Source*>(context);
                         from.asked.push_back(bytes);
                         from.given.push_back(std::make_unique<Scratch>(bytes + from.shift));
                         return static_cast<char*>(from.given.back()->buffer().data) + from.shift;
                       },
                       &source};
  run(masked.problem, execution);
  oracle::Comparison result = oracle::check(masked.problem);
  EXPECT_TRUE(result.ok) << result.message;
  EXPECT_EQ(source.asked, (std::vector<std::int64_t>{made.schedule_bytes, made.workspace_bytes}));

  // Only the buffers that the caller did not pass come from the source.
  source.asked.clear();
  const Scratch workspace(made.workspace_bytes);
  execution.workspace = workspace.buffer();
  attention(masked.problem, execution);
  EXPECT_EQ(source.asked, (std::vector<std::int64_t>{made.schedule_bytes}));

  source.shift = 4;
  masked.memory.arm();
  expect_refused([&] { run(masked.problem, execution); }, "schedule", masked.memory);
}

TEST(PlanSteps, RunOfAnyProblemRefusesSpgemm) {
  const auto c = generate::spgemm_case(1, {.dtype = DType::f32});
  try {
    run(c->problem);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
  }
}

TEST(PlanSteps, PlanningReadsNoData) {
  // The tensors have null pointers: planning reads only shapes.
  AttentionProblem problem;
  problem.q = problem.out = tensor(nullptr, DType::bf16, {2, 4096, 16, 64});
  problem.k = problem.v = tensor(nullptr, DType::bf16, {2, 4096, 4, 64});
  EXPECT_NO_THROW(plan(problem, device_preset("cpu")));
  EXPECT_THROW(attention(problem), Error);
}

}  // namespace
}  // namespace tessera
