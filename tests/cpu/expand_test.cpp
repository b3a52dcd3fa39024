// Products with dense copies of their block-sparse operands.
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "src/api/families.hpp"
#include "src/problem/expand.hpp"
#include "src/select/select.hpp"
#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using expect::Scratch;
using generate::Case;
using generate::Layout;
using generate::Memory;
using generate::Random;
using planning::Order;

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

/// The families of this build, with a cost model that prefers products without sparse operands.
planning::Families dense_is_faster() {
  static const std::vector<planning::KernelFamily> families = [] {
    const auto known = api::families();
    std::vector<planning::KernelFamily> all(known.begin(), known.end());
    for (planning::KernelFamily& family : all) {
      if (family.op != Op::matmul || family.backend != Backend::cpu) continue;
      family.seconds = [](const planning::AnyShape& shape, const planning::Layout&,
                          const planning::KernelRow&, const DeviceFacts&) {
        const auto& s = std::get<planning::MatmulShape>(shape);
        return 1.0 + (s.a.sparse ? 1 : 0) + (s.b.sparse ? 1 : 0);
      };
    }
    return all;
  }();
  return families;
}

Plan plan_with(const MatmulProblem& problem, std::int64_t limit) {
  const auto request =
      planning::Request::of(problem, device_facts({}), {.threads = 1, .expand_bytes = limit});
  return planning::public_plan(dense_is_faster(), planning::choose(dense_is_faster(), request));
}

/// The same plan with copies in the given order.
Plan in_order(Plan plan, Order order) {
  auto planned = std::make_shared<planning::Planned>(*plan.planned);
  const auto& shape = std::get<planning::MatmulShape>(planned->shape);
  if (planned->expansion.a) planned->expansion.a = order;
  if (planned->expansion.b) planned->expansion.b = order;
  core::Carver carver;
  carve_expanded(carver, shape, planned->expansion, planned->dense->buffers.schedule);
  planned->buffers.schedule = plan.schedule_bytes = carver.used();
  plan.planned = planned;
  return plan;
}

/// Runs a case with copies and compares the result with the oracle. Other operands hold finite
/// values everywhere, as a dense product reads all of them.
void expand_and_check(Case<MatmulProblem>& c) {
  for (const Operand* operand : {&c.problem.a, &c.problem.b})
    if (!operand->is_sparse()) c.memory.fill_normal(operand->dense);
  const Plan rows = plan_with(c.problem, kNoLimit);
  c.memory.arm();
  for (const Plan& plan : {rows, rows.expanded_bytes > 0 ? in_order(rows, Order::columns) : rows}) {
    c.memory.reset();
    const Scratch workspace(plan.workspace_bytes), schedule(plan.schedule_bytes);
    const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
    try {
      prepare(plan, c.problem, execution);
      run(plan, c.problem, execution);
    } catch (const Error& error) {
      ADD_FAILURE() << c.text << ": refused: " << error.what();
      return;
    }
    EXPECT_EQ(c.memory.damage(), "") << c.text;
    const oracle::Comparison result = check(c);
    EXPECT_TRUE(result.ok) << c.text << ": " << result.message;
  }
}

void match(const generate::ProductOptions& options, std::uint64_t seeds) {
  std::uint64_t expanded = 0;
  for (DType dtype : kTypes) {
    generate::ProductOptions typed = options;
    typed.dtype = dtype;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const auto c = generate::matmul_case(seed, typed);
      expand_and_check(*c);
      const Plan plan = plan_with(c->problem, kNoLimit);
      expanded += plan.expanded_bytes > 0;
      EXPECT_EQ(plan.expanded_bytes == 0, plan.planned->dense == nullptr);
    }
  }
  EXPECT_GT(expanded, seeds);  // the others have no elements
}

TEST(Expand, SparseTimesDense) { match({.sparse_a = true, .sparse_b = false}, 150); }
TEST(Expand, DenseTimesSparse) { match({.sparse_a = false, .sparse_b = true}, 150); }
TEST(Expand, SparseTimesSparse) { match({.sparse_a = true, .sparse_b = true}, 150); }
TEST(Expand, GroupsOfRowsTimesSparse) {
  match({.sparse_b = true, .grouped = GroupAxis::rows}, 100);
}

TEST(Expand, BlocksOfManyShapes) {
  for (std::int64_t rows : {16, 32, 64, 128}) {
    for (std::int64_t cols : {16, 32, 64, 128}) {
      for (bool transposed : {false, true}) {
        Case<MatmulProblem> c(static_cast<std::uint64_t>(rows * 1000 + cols));
        c.text = "blocks " + std::to_string(rows) + " x " + std::to_string(cols);
        const generate::WildBsr bsr = generate::wild_bsr(c.random, c.memory, 3 * rows, 2 * cols,
                                                         rows, cols, DType::f16, 2, false);
        c.problem.a = bsr.matrix;
        c.problem.a.transposed = transposed;
        c.problem.b =
            c.memory.input(DType::f16, {transposed ? 3 * rows : 2 * cols, 45}, Layout::wild);
        c.problem.out =
            c.memory.output(DType::f16, {2, transposed ? 2 * cols : 3 * rows, 45}, Layout::wild);
        expand_and_check(c);
      }
    }
  }
}

/// A matrix of 3 x 4 blocks of 8 x 6, times a dense one; lists are contiguous.
struct Small {
  Random random{7};
  Memory memory{random};
  HostBsr a;
  MatmulProblem problem;

  explicit Small(DType dtype = DType::f16, const Pattern& pattern = patterns::random(3, 4, 0.5, 1))
      : a(make_bsr(pattern, 8, 6, dtype)) {
    problem.a = a.view();
    problem.b = memory.input(dtype, {24, 10}, Layout::contiguous);
    problem.out = memory.output(DType::f32, {24, 10}, Layout::contiguous);
    memory.fill_normal(a.values);
    memory.fill_normal(problem.b.dense);
  }
};

/// 24 rows of 24 elements of two bytes, at multiples of 16 bytes.
constexpr std::int64_t kCopyBytes = 24 * 48;

TEST(Expand, TheCopyHasToFitTheLimit) {
  Small small;
  const Plan given = plan_with(small.problem, 0);
  EXPECT_EQ(given.expanded_bytes, 0);
  const Plan below = plan_with(small.problem, kCopyBytes - 1);
  EXPECT_EQ(below.expanded_bytes, 0);
  EXPECT_EQ(below.schedule_bytes, given.schedule_bytes);
  const Plan exact = plan_with(small.problem, kCopyBytes);
  EXPECT_EQ(exact.expanded_bytes, kCopyBytes);
  EXPECT_EQ(exact.schedule_bytes, kCopyBytes + 128) << "the copy and the mark";
  EXPECT_EQ(exact.signature, given.signature);
  EXPECT_LT(exact.predicted_ms, given.predicted_ms);
  EXPECT_THROW(plan_with(small.problem, -1), Error);
}

TEST(Expand, LinesAreAligned) {
  // 18 columns of f16 are 36 bytes: lines begin at multiples of 48.
  MatmulProblem problem;
  const HostBsr a = make_bsr(patterns::random(2, 3, 0.5, 1), 8, 6, DType::f16);
  problem.a = a.view();
  problem.b = tensor(nullptr, DType::f16, {18, 4});
  problem.out = tensor(nullptr, DType::f16, {16, 4});
  EXPECT_EQ(plan_with(problem, kNoLimit).expanded_bytes, 16 * 48);
}

TEST(Expand, OneOfTwoOperandsMayFit) {
  Small small;
  const HostBsr b = make_bsr(patterns::random(12, 2, 0.5, 2), 2, 5, DType::f16);
  small.memory.fill_normal(b.values);
  small.problem.b = b.view();
  // 24 rows of 32 bytes, or 10 columns of 48 bytes in pieces of 128.
  constexpr std::int64_t kRows = 24 * 32, kColumns = 512;
  const auto orders = [&](std::int64_t limit) {
    const planning::Expansion e = plan_with(small.problem, limit).planned->expansion;
    return std::pair(e.a, e.b);
  };
  using Orders = decltype(orders(0));
  EXPECT_EQ(orders(kColumns - 1), Orders());
  EXPECT_EQ(orders(kColumns), Orders(std::nullopt, Order::columns));
  EXPECT_EQ(orders(kRows), Orders(std::nullopt, Order::rows));
  EXPECT_EQ(orders(kCopyBytes + kColumns), Orders(Order::rows, Order::columns));
  EXPECT_EQ(orders(kCopyBytes + kRows), Orders(Order::rows, Order::rows));
  EXPECT_EQ(plan_with(small.problem, kNoLimit).expanded_bytes, kCopyBytes + kRows);

  // The other operand keeps its lists, in a schedule after the copy.
  const Plan plan = plan_with(small.problem, kRows);
  ASSERT_GT(plan.planned->dense->buffers.schedule, 0);
  const Scratch workspace(plan.workspace_bytes), schedule(plan.schedule_bytes);
  const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  prepare(plan, small.problem, execution);
  run(plan, small.problem, execution);
  const oracle::Comparison result = oracle::check(small.problem);
  EXPECT_TRUE(result.ok) << result.message;
}

TEST(Expand, EmptyMatricesAreNotCopied) {
  MatmulProblem problem;
  const HostBsr a = make_bsr({0, 4, {0}, {}}, 8, 6, DType::f32);
  problem.a = a.view();
  problem.b = tensor(nullptr, DType::f32, {24, 10});
  problem.out = tensor(nullptr, DType::f32, {0, 10});
  EXPECT_EQ(plan_with(problem, kNoLimit).expanded_bytes, 0);
}

TEST(Expand, MatricesWithoutADenseSizeAreNotCopied) {
  // 2^80 elements do not fit 64 bits.
  constexpr std::int64_t kHuge = std::int64_t{1} << 40, kBlock = std::int64_t{1} << 20;
  MatmulProblem problem;
  problem.a = BsrMatrix{tensor(nullptr, DType::f16, {3, kBlock, kBlock}),
                        tensor(nullptr, DType::i64, {kHuge / kBlock + 1}),
                        tensor(nullptr, DType::i64, {3}), kHuge, kHuge};
  problem.b = tensor(nullptr, DType::f16, {kHuge, 1});
  problem.out = tensor(nullptr, DType::f16, {kHuge, 1});
  EXPECT_EQ(plan_with(problem, kNoLimit).expanded_bytes, 0);
}

TEST(Expand, ChangedValuesAndListsArePreparedAgain) {
  for (DType dtype : kTypes) {
    Small small(dtype);
    const Plan plan = plan_with(small.problem, kNoLimit);
    ASSERT_GT(plan.expanded_bytes, 0);
    const Scratch workspace(plan.workspace_bytes), schedule(plan.schedule_bytes);
    const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
    for (std::uint64_t round = 0; round < 4; ++round) {
      const Pattern pattern = patterns::random(3, 4, 0.5, round);
      for (std::size_t i = 0; i < pattern.offsets.size(); ++i)
        small.a.row_offsets.data<std::int32_t>()[i] = static_cast<std::int32_t>(pattern.offsets[i]);
      for (std::size_t i = 0; i < pattern.indices.size(); ++i)
        small.a.col_indices.data<std::int32_t>()[i] = static_cast<std::int32_t>(pattern.indices[i]);
      small.memory.fill_normal(small.a.values);
      prepare(plan, small.problem, execution);
      for (int inputs = 0; inputs < 2; ++inputs) {
        small.memory.fill_normal(small.problem.b.dense);
        run(plan, small.problem, execution);
        const oracle::Comparison result = oracle::check(small.problem);
        EXPECT_TRUE(result.ok) << result.message;
      }
    }
  }
}

void expect_refused(const std::function<void()>& call, const std::string& words,
                    const Memory& memory) {
  try {
    call();
    ADD_FAILURE() << "not refused, expected a message with " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
  EXPECT_TRUE(memory.untouched());
}

TEST(Expand, OtherProblemsThanThePreparedOneAreRefused) {
  Small small;
  const Plan plan = plan_with(small.problem, kNoLimit), given = plan_with(small.problem, 0);
  const Scratch workspace(plan.workspace_bytes), schedule(plan.schedule_bytes);
  const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  small.memory.arm();
  const auto refused = [&](const Plan& by, const MatmulProblem& problem, const Execution& how,
                           const std::string& words) {
    expect_refused([&] { run(by, problem, how); }, words, small.memory);
  };
  refused(plan, small.problem, {}, "schedule: expected at least");
  refused(plan, small.problem, execution, "never prepared");
  Execution small_schedule = execution;
  small_schedule.schedule.bytes -= 1;
  expect_refused([&] { prepare(plan, small.problem, small_schedule); }, "schedule", small.memory);

  prepare(plan, small.problem, execution);
  const HostTensor other(DType::f16, {6, 8, 6});
  MatmulProblem changed = small.problem;
  changed.a.sparse.values.data = other.view().data;
  refused(plan, changed, execution, "copies of other values; prepare again");
  changed = small.problem;
  changed.out.dtype = DType::bf16;
  refused(plan, changed, execution, "plan again");
  const Scratch lists(given.schedule_bytes);
  prepare(given, small.problem, {.schedule = lists.buffer()});
  refused(given, small.problem, execution, "another plan's");

  run(plan, small.problem, execution);
  const oracle::Comparison result = oracle::check(small.problem);
  EXPECT_TRUE(result.ok) << result.message;
}

TEST(Expand, PrepareReadsNoDenseTensorAndRefusesInvalidLists) {
  Small small;
  const Plan plan = plan_with(small.problem, kNoLimit);
  const Scratch workspace(plan.workspace_bytes), schedule(plan.schedule_bytes);
  const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  MatmulProblem lists = small.problem;
  lists.b.dense.data = lists.out.data = nullptr;
  small.memory.arm();
  auto* const columns = small.a.col_indices.data<std::int32_t>();
  const std::int32_t first = columns[0];
  for (const std::int32_t column : {-1, 4, columns[1], std::numeric_limits<std::int32_t>::max()}) {
    columns[0] = column;
    expect_refused([&] { prepare(plan, lists, execution); }, "block columns", small.memory);
  }
  columns[0] = first;
  MatmulProblem no_values = lists;
  no_values.a.sparse.values.data = nullptr;
  expect_refused([&] { prepare(plan, no_values, execution); }, "values", small.memory);
  prepare(plan, lists, execution);
  run(plan, small.problem, execution);
  const oracle::Comparison result = oracle::check(small.problem);
  EXPECT_TRUE(result.ok) << result.message;
}

TEST(Expand, TheScheduleMayNotOverlapOtherTensors) {
  Small small;
  const Plan plan = plan_with(small.problem, kNoLimit);
  const Scratch schedule(plan.schedule_bytes);
  MatmulProblem inside = small.problem;
  inside.b.dense.data = static_cast<char*>(schedule.buffer().data) + 128;
  small.memory.arm();
  expect_refused([&] { prepare(plan, inside, {.schedule = schedule.buffer()}); }, "schedule",
                 small.memory);
}

TEST(Expand, CallsWithoutAPlanIgnoreTheLimit) {
  // The generator's dense operands hold NaN where no stored block meets them.
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto c = generate::matmul_case(seed, {.sparse_a = true, .sparse_b = false});
    expect::matches_oracle(*c, {.threads = 1, .expand_bytes = kNoLimit});
  }
}

TEST(Expand, ADenseProductReadsWhatNoBlockMeets) {
  Small small(DType::f16, {3, 4, {0, 0, 0, 4}, {0, 1, 2, 3}});
  store_from_float(small.problem.b.dense.data, DType::f16, 0,
                   std::numeric_limits<float>::quiet_NaN());
  const Plan plan = plan_with(small.problem, kNoLimit);
  const Scratch schedule(plan.schedule_bytes);
  prepare(plan, small.problem, {.schedule = schedule.buffer()});
  run(plan, small.problem, {.schedule = schedule.buffer()});
  const auto* const out = static_cast<const float*>(small.problem.out.data);
  EXPECT_NE(out[0], out[0]) << "row 0 stores no block; the documentation says that it is NaN";
  matmul(small.problem);
  EXPECT_EQ(out[0], 0.0f);
}

TEST(Expand, ExplainListsRowsWithAndWithoutCopies) {
  Small small;
  const auto request =
      planning::Request::of(small.problem, device_facts({}), {.expand_bytes = kNoLimit});
  const Explanation e = planning::explain(dense_is_faster(), request);
  EXPECT_EQ(e.plan.expanded_bytes, kCopyBytes);
  EXPECT_EQ(e.candidates.front().expanded_bytes, kCopyBytes);
  std::int64_t given = 0;
  for (const Candidate& c : e.candidates) given += c.reasons.empty() && c.expanded_bytes == 0;
  EXPECT_GT(given, 0);
  const std::string text = to_text(e);
  EXPECT_NE(text.find(", expanded to a dense copy of 1.15 kB\n"), std::string::npos) << text;
  EXPECT_NE(to_json(e).find("\"expanded_bytes\": 1152"), std::string::npos) << to_json(e);
}

}  // namespace
}  // namespace tessera
