#include <algorithm>

#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::spgemm_case;

const Execution kOneThread{.threads = 1};
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

/// Runs the symbolic step, then the numeric step into memory of the sizes that the plan gives.
void match_planned(std::uint64_t seed, const generate::ProductOptions& options) {
  const auto c = spgemm_case(seed, options);
  const Pattern expected = oracle::spgemm_pattern(c->problem);
  c->memory.arm();
  try {
    const SpgemmPlan plan = spgemm_symbolic(c->problem, kOneThread);
    ASSERT_EQ(plan.stored_blocks(), expected.stored()) << c->text;
    EXPECT_EQ(plan.rows(), expected.rows * plan.block_rows()) << c->text;
    EXPECT_EQ(plan.cols(), expected.cols * plan.block_cols()) << c->text;
    const DType dtype = c->random.pick({DType::f32, DType::f16, DType::bf16});
    const BsrMatrix out = output_for(*c, expected, dtype, c->random.pick({DType::i32, DType::i64}));
    // The numeric step has to write the lists.
    for (const Tensor& list : {out.row_offsets, out.col_indices}) {
      oracle::write(list, oracle::DenseArray({list.size(0)}, -7.0));
    }
    c->memory.arm();
    spgemm_numeric(plan, c->problem, out, kOneThread);
    EXPECT_EQ(c->memory.damage(), "") << c->text;
    const std::vector<double> offsets = oracle::read(out.row_offsets).values;
    const std::vector<double> columns = oracle::read(out.col_indices).values;
    ASSERT_EQ(std::vector<std::int64_t>(offsets.begin(), offsets.end()), expected.offsets)
        << c->text;
    ASSERT_EQ(std::vector<std::int64_t>(columns.begin(), columns.end()), expected.indices)
        << c->text;
    const oracle::Comparison result = oracle::check(c->problem, out, c->former_values());
    EXPECT_TRUE(result.ok) << c->text << ": " << result.message;
  } catch (const Error& error) {
    ADD_FAILURE() << c->text << ": refused: " << error.what();
  }
}

/// Runs the numeric step into a given pattern.
void match_given(std::uint64_t seed, const generate::ProductOptions& options) {
  const auto c = spgemm_case(seed, options);
  const Pattern whole = oracle::spgemm_pattern(c->problem);
  const Pattern pattern = generate::wild_pattern(c->random, whole.rows, whole.cols);
  const BsrMatrix out = output_for(*c, pattern, c->random.pick({DType::f32, DType::bf16}),
                                   c->random.pick({DType::i32, DType::i64}));
  c->memory.arm();
  try {
    spgemm_numeric(c->problem, out, kOneThread);
  } catch (const Error& error) {
    ADD_FAILURE() << c->text << ": refused: " << error.what();
    return;
  }
  EXPECT_EQ(c->memory.damage(), "") << c->text;
  const oracle::Comparison result = oracle::check(c->problem, out, c->former_values());
  EXPECT_TRUE(result.ok) << c->text << ": " << result.message;
}

TEST(Spgemm, PatternAndValuesFromThePlan) {
  for (DType dtype : kTypes) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) match_planned(seed, {.dtype = dtype});
  }
}

TEST(Spgemm, ValuesAtAGivenPattern) {
  for (DType dtype : kTypes) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) match_given(seed, {.dtype = dtype});
  }
}

TEST(Spgemm, LargerMatrices) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    match_planned(seed, {.largest = 250});
    match_given(seed, {.largest = 250});
  }
}

TEST(Spgemm, APlanRunsWithNewValues) {
  auto c = spgemm_case(0, {.dtype = DType::f32});
  for (std::uint64_t seed = 1; oracle::spgemm_pattern(c->problem).stored() == 0; ++seed) {
    c = spgemm_case(seed, {.dtype = DType::f32});
  }
  c->problem.beta = 0;
  const SpgemmPlan plan = spgemm_symbolic(c->problem);
  const BsrMatrix out = output_for(*c, oracle::spgemm_pattern(c->problem), DType::f32, DType::i32);
  for (int round = 0; round < 3; ++round) {
    c->memory.fill_normal(c->problem.a.sparse.values);
    spgemm_numeric(plan, c->problem, out);
    const oracle::Comparison result = oracle::check(c->problem, out);
    EXPECT_TRUE(result.ok) << result.message;
  }
}

/// A case whose product has blocks, with memory for the result.
struct Stored {
  std::unique_ptr<generate::Case<SpgemmProblem>> c = spgemm_case(0, {.dtype = DType::f32});
  BsrMatrix out;
  Stored() {
    for (std::uint64_t seed = 1; oracle::spgemm_pattern(c->problem).stored() == 0; ++seed)
      c = spgemm_case(seed, {.dtype = DType::f32});
    out = output_for(*c, oracle::spgemm_pattern(c->problem), DType::f32, DType::i32);
  }
};

TEST(Spgemm, AMovedFromPlanIsEmpty) {
  const Stored stored;
  SpgemmPlan plan = spgemm_symbolic(stored.c->problem);
  const SpgemmPlan taken = std::move(plan);
  EXPECT_GT(taken.stored_blocks(), 0);
  EXPECT_EQ(plan.stored_blocks(), 0);  // NOLINT: tests the moved-from state
  EXPECT_EQ(plan.flops(), 0);
  EXPECT_THROW(spgemm_numeric(plan, stored.c->problem, stored.out), Error);
  EXPECT_NO_THROW(spgemm_numeric(taken, stored.c->problem, stored.out));
}

TEST(Spgemm, TheCallersWorkspaceIsUsed) {
  const Stored stored;
  const SpgemmProblem& problem = stored.c->problem;
  const std::int64_t bytes = plan(problem, kOneThread).workspace_bytes;
  ASSERT_GT(bytes, 0);
  std::vector<char> memory(static_cast<std::size_t>(bytes) + 128, '\x5A');
  const auto address = (reinterpret_cast<std::uintptr_t>(memory.data()) + 127) / 128 * 128;
  Execution execution = kOneThread;
  execution.workspace = {reinterpret_cast<void*>(address), bytes};
  spgemm_numeric(problem, stored.out, execution);
  EXPECT_TRUE(std::any_of(memory.begin(), memory.end(), [](char x) { return x != '\x5A'; }));
  execution.workspace.bytes = bytes - 1;
  EXPECT_THROW(spgemm_numeric(problem, stored.out, execution), Error);
}

}  // namespace
}  // namespace tessera
