// How a row that the caller names replaces the chosen one, and what explain says about it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include <tessera/error.hpp>

#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

const std::string kModels = "sm90_matmul_m128_n256_k64_s4", kOther = "sm90_matmul_m128_n128_k64_s5";
const std::string kGroupsOnly =
    "sm90_matmul_m128_n64_k64_s6";  // does not support ordinary products

DeviceFacts h200() { return device_preset("h200"); }

/// At this size our own rows are ahead of cuBLASLt.
AnyProblem product() {
  const auto square = [] { return tensor(nullptr, DType::bf16, {8192, 8192}); };
  MatmulProblem p;
  p.a = square(), p.b = square(), p.out = square();
  return p;
}

Execution forcing(const std::string& row) {
  Execution execution;
  execution.kernel = row;
  return execution;
}

/// All fields of a plan as text, for comparison.
std::string text(const Plan& p) {
  Explanation e;
  e.supported = true;
  e.candidates.resize(1);
  e.plan = p;
  return to_json(e);
}

std::string refusal(const AnyProblem& problem, const DeviceFacts& device,
                    const Execution& execution) {
  try {
    return choose(problem, device, execution).kernel_name;
  } catch (const Error& error) {
    return error.what();
  }
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Forced, OtherwiseTheCostModelChooses) {
  const Explanation e = select(product(), h200());
  EXPECT_EQ(e.plan.kernel_name, kModels);
  EXPECT_EQ(e.chosen_by, ChosenBy::cost_model);
  EXPECT_TRUE(has(to_text(e), "chosen by the cost model\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(e))["chosen_by"], "cost model");
}

TEST(Forced, TheNamedRowIsPlanned) {
  const Plan plan = choose(product(), h200(), forcing(kOther));
  EXPECT_EQ(plan.kernel_name, kOther);
  EXPECT_EQ(rows_of(plan.backend)[static_cast<std::size_t>(plan.kernel)].name, kOther);

  const Explanation e = select(product(), h200(), forcing(kOther));
  EXPECT_EQ(text(e.plan), text(plan));
  EXPECT_EQ(e.chosen_by, ChosenBy::execution);
  ASSERT_EQ(e.candidates.size(), 1u) << "other rows are not considered";
  EXPECT_EQ(e.candidates.front().kernel, kOther);
  EXPECT_EQ(e.candidates.front().predicted_ms, plan.predicted_ms);
  EXPECT_TRUE(has(to_text(e), "chosen    " + kOther));
  EXPECT_TRUE(has(to_text(e), "chosen by execution.kernel\n"));
  EXPECT_TRUE(has(to_text(e), "because   " + e.candidates.front().why));
  EXPECT_EQ(nlohmann::json::parse(to_json(e))["chosen_by"], "execution.kernel");

  EXPECT_EQ(select(product(), h200(), forcing(kModels)).chosen_by, ChosenBy::execution)
      << "also where the cost model agrees";
}

TEST(Forced, EachRowHasItsOwnBuffers) {
  // One query: the rows split its keys, and need different workspaces for the parts.
  AttentionProblem p;
  p.q = p.out = tensor(nullptr, DType::bf16, {1, 1, 32, 64});
  p.k = p.v = tensor(nullptr, DType::bf16, {1, 8192, 4, 64});
  AnyShape shape = shape_of(AnyProblem(p));
  std::visit([](auto& s) { s.device = {DeviceKind::cuda, 0}; }, shape);
  std::set<std::int64_t> workspaces;
  for (const Candidate& c : select(p, h200()).candidates) {
    if (!c.reasons.empty()) continue;
    const Plan plan = choose(p, h200(), forcing(c.kernel));
    EXPECT_EQ(plan.kernel_name, c.kernel);
    EXPECT_EQ(plan.predicted_ms, c.predicted_ms);
    EXPECT_EQ(plan.signature, choose(p, h200()).signature);
    const KernelRow& row = rows_of(plan.backend)[static_cast<std::size_t>(plan.kernel)];
    Reasons reasons;
    const KernelFamily& family = family_of(row);
    const Layout layout = family.layout(shape, row, h200(), reasons);
    const BufferSizes buffers = family.buffers(shape, layout, row, plan.threads);
    EXPECT_EQ(plan.workspace_bytes, buffers.workspace);
    EXPECT_EQ(plan.schedule_bytes, buffers.schedule);
    workspaces.insert(plan.workspace_bytes);
  }
  EXPECT_GT(workspaces.size(), 3u);
}

TEST(Forced, AForcedBackendStands) {
  MergeStatesProblem merge;
  const Tensor part = tensor(nullptr, DType::bf16, {2, 64, 4, 32});
  const Tensor lse = tensor(nullptr, DType::f32, {2, 4, 64});
  merge.outs = {part, part}, merge.lses = {lse, lse}, merge.out = part;
  Execution execution = forcing("sm90_merge_r8");
  execution.backend = Backend::sm80;
  EXPECT_TRUE(has(refusal(merge, h200(), execution), "execution.backend requires sm80"));
  EXPECT_FALSE(select(merge, h200(), execution).supported);
}

TEST(Forced, AnUnknownNameListsTheRows) {
  for (const std::string name : {"sm90_x", "sm90_merge_r8"}) {
    const std::string message = refusal(product(), h200(), forcing(name));
    EXPECT_TRUE(has(message, "execution: kernel: expected a row for matmul ("));
    EXPECT_TRUE(has(message, kOther));
    EXPECT_TRUE(has(message, "got '" + name + "'"));
    EXPECT_FALSE(has(message, "sm90_merge_r8,"));
    EXPECT_THROW(select(product(), h200(), forcing(name)), Error);
  }
}

TEST(Forced, ARowThatDoesNotSupportTheProblemSaysWhy) {
  EXPECT_EQ(refusal(product(), h200(), forcing(kGroupsOnly)),
            "execution: kernel: " + kGroupsOnly +
                " does not support matmul bf16[8192x8192] * bf16[8192x8192] -> bf16 on cuda: "
                "requires group_offsets, or an operand that has to be copied");
  const Explanation e = select(product(), h200(), forcing(kGroupsOnly));
  EXPECT_FALSE(e.supported);
  ASSERT_EQ(e.candidates.size(), 1u);
  EXPECT_EQ(e.candidates.front().kernel, kGroupsOnly);
  EXPECT_EQ(e.plan.kernel_name, "");
  EXPECT_TRUE(nlohmann::json::parse(to_json(e))["chosen_by"].is_null());
}

}  // namespace
