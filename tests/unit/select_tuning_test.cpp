// How a forced row and a tuning file change the chosen row, and what explain says about it.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include <tessera/error.hpp>

#include "src/select/tuning.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

const std::string kModels = "sm90_matmul_m128_n256_k64_s4", kOther = "sm90_matmul_m128_n128_k64_s5";
const std::string kGroupsOnly =
    "sm90_matmul_m128_n64_k64_s6";  // does not support ordinary products

DeviceFacts h200() { return device_preset("h200"); }

/// At this size our own rows are ahead of cuBLASLt.
AnyProblem product(std::int64_t size = 8192) {
  const auto square = [size] { return tensor(nullptr, DType::bf16, {size, size}); };
  MatmulProblem p;
  p.a = square(), p.b = square(), p.out = square();
  return p;
}

/// A file that names one row for the product.
Tuning preferring(const std::string& row) {
  const std::string signature = select(product(), h200(), {}).problem;
  Tuning tuning;
  tuning.file = {.path = "/h200.tuning", .found = true, .ignored = "", .problems = 1};
  tuning.rows = parse_tuning(
      api::families(), "tessera-tuning 1\ndevice " + h200().name + "\n" + row + "\t" + signature,
      h200().name);
  return tuning;
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
    return choose(problem, device, execution, {}).kernel_name;
  } catch (const Error& error) {
    return error.what();
  }
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Tuned, WithoutAFileTheCostModelChooses) {
  EXPECT_EQ(text(choose(product(), h200(), {}, {})), text(choose(product(), h200(), {})));
  const Explanation e = select(product(), h200(), {}, {});
  EXPECT_EQ(e.plan.kernel_name, kModels);
  EXPECT_EQ(e.chosen_by, ChosenBy::cost_model);
  EXPECT_EQ(e.preferred, "");
  EXPECT_TRUE(has(to_text(e), "chosen by the cost model\n"));
  EXPECT_FALSE(has(to_text(e), "tuning"));
}

TEST(Tuned, TheRowOfTheFileIsChosen) {
  const Tuning tuning = preferring(kOther);
  const Plan plan = choose(product(), h200(), {}, tuning);
  EXPECT_EQ(plan.kernel_name, kOther);
  EXPECT_EQ(rows_of(plan.backend)[static_cast<std::size_t>(plan.kernel)].name, kOther);

  const Explanation e = select(product(), h200(), {}, tuning);
  EXPECT_EQ(text(e.plan), text(plan));
  EXPECT_EQ(e.chosen_by, ChosenBy::tuning_file);
  EXPECT_EQ(e.preferred, kOther);
  EXPECT_EQ(e.candidates.front().kernel, kOther);
  EXPECT_EQ(e.candidates.front().predicted_ms, plan.predicted_ms);
  EXPECT_EQ(e.candidates[1].kernel, kModels) << "the cost model's choice comes next";
  EXPECT_EQ(e.candidates.size(), select(product(), h200(), {}).candidates.size());
  EXPECT_TRUE(has(to_text(e), "chosen    " + kOther));
  EXPECT_TRUE(has(to_text(e), "chosen by the tuning file\n"));
  EXPECT_TRUE(has(to_text(e), "tuning    /h200.tuning: in use (1 problem)\n"));
  EXPECT_TRUE(has(to_text(e), "because   " + e.candidates.front().why));

  const auto json = nlohmann::json::parse(to_json(e));
  EXPECT_EQ(json["chosen_by"], "tuning file");
  EXPECT_EQ(json["preferred"], kOther);
  EXPECT_EQ(json["tuning"]["path"], "/h200.tuning");
  EXPECT_EQ(json["tuning"]["found"], true);
  EXPECT_EQ(json["tuning"]["problems"], 1);
  EXPECT_TRUE(json["tuning"]["ignored"].is_null());
}

TEST(Tuned, APlanMovedToARowIsThePlanOfThatRow) {
  // One query: the rows split its keys, and need different workspaces for the parts.
  AttentionProblem p;
  p.q = p.out = tensor(nullptr, DType::bf16, {1, 1, 32, 64});
  p.k = p.v = tensor(nullptr, DType::bf16, {1, 8192, 4, 64});
  AnyShape shape = shape_of(AnyProblem(p));
  std::visit([](auto& s) { s.device = {DeviceKind::cuda, 0}; }, shape);
  std::set<std::int64_t> workspaces;
  for (const Candidate& c : select(p, h200(), {}).candidates) {
    if (!c.reasons.empty()) continue;
    const Plan plan = choose(p, h200(), forcing(c.kernel), {});
    EXPECT_EQ(plan.kernel_name, c.kernel);
    EXPECT_EQ(plan.predicted_ms, c.predicted_ms);
    EXPECT_EQ(plan.signature, choose(p, h200(), {}).signature);
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

TEST(Tuned, AFileThatAgreesWithTheModelIsNamed) {
  const Explanation e = select(product(), h200(), {}, preferring(kModels));
  EXPECT_EQ(e.plan.kernel_name, kModels);
  EXPECT_EQ(e.chosen_by, ChosenBy::tuning_file);
}

TEST(Tuned, OtherProblemsUseTheCostModel) {
  const Explanation e = select(product(16384), h200(), {}, preferring(kOther));
  EXPECT_EQ(e.chosen_by, ChosenBy::cost_model);
  EXPECT_EQ(e.preferred, "");
  EXPECT_EQ(e.tuning.path, "/h200.tuning");
  EXPECT_EQ(choose(product(16384), h200(), {}, preferring(kOther)).kernel_name, kModels);
}

TEST(Tuned, ARowThatDoesNotFitIsPassedOver) {
  const Tuning tuning = preferring(kGroupsOnly);
  EXPECT_EQ(choose(product(), h200(), {}, tuning).kernel_name, kModels);
  const Explanation e = select(product(), h200(), {}, tuning);
  EXPECT_TRUE(e.supported);
  EXPECT_EQ(e.plan.kernel_name, kModels);
  EXPECT_EQ(e.chosen_by, ChosenBy::cost_model);
  EXPECT_EQ(e.preferred, kGroupsOnly);
  EXPECT_TRUE(has(to_text(e), "chosen by the cost model; the tuning file's " + kGroupsOnly +
                                  " does not support this problem\n"));
  // Rows of another device are passed over too.
  EXPECT_EQ(choose(product(), h200(), {}, preferring("cpu_matmul_m64_n384_k512")).kernel_name,
            kModels);
}

TEST(Tuned, AForcedRowComesBeforeTheFile) {
  const Tuning tuning = preferring(kOther);
  EXPECT_EQ(choose(product(), h200(), forcing(kModels), tuning).kernel_name, kModels);
  const Explanation e = select(product(), h200(), forcing(kModels), tuning);
  EXPECT_EQ(e.plan.kernel_name, kModels);
  EXPECT_EQ(e.chosen_by, ChosenBy::execution);
  EXPECT_EQ(e.preferred, kOther);
  ASSERT_EQ(e.candidates.size(), 1u);
  EXPECT_TRUE(has(to_text(e), "chosen by execution.kernel\n"));
}

TEST(Tuned, AForcedBackendStands) {
  Execution execution;
  execution.backend = Backend::sm90;
  EXPECT_EQ(choose(product(), h200(), execution, preferring(kOther)).kernel_name, kOther);

  MergeStatesProblem merge;
  const Tensor part = tensor(nullptr, DType::bf16, {2, 64, 4, 32});
  const Tensor lse = tensor(nullptr, DType::f32, {2, 4, 64});
  merge.outs = {part, part}, merge.lses = {lse, lse}, merge.out = part;
  execution.backend = Backend::sm80;
  execution.kernel = "sm90_merge_r8";
  EXPECT_TRUE(has(refusal(merge, h200(), execution), "execution.backend requires sm80"));
  EXPECT_FALSE(select(merge, h200(), execution, {}).supported);
}

TEST(Forced, AnUnknownNameListsTheRows) {
  for (const std::string name : {"sm90_x", "sm90_merge_r8"}) {
    const std::string message = refusal(product(), h200(), forcing(name));
    EXPECT_TRUE(has(message, "execution: kernel: expected a row for matmul ("));
    EXPECT_TRUE(has(message, kOther));
    EXPECT_TRUE(has(message, "got '" + name + "'"));
    EXPECT_FALSE(has(message, "sm90_merge_r8,"));
    EXPECT_THROW(select(product(), h200(), forcing(name), {}), Error);
  }
}

TEST(Forced, ARowThatDoesNotSupportTheProblemSaysWhy) {
  EXPECT_EQ(refusal(product(), h200(), forcing(kGroupsOnly)),
            "execution: kernel: " + kGroupsOnly +
                " does not support matmul bf16[8192x8192] * bf16[8192x8192] -> bf16 on cuda: "
                "requires group_offsets, or an operand that has to be copied");
  const Explanation e = select(product(), h200(), forcing(kGroupsOnly), {});
  EXPECT_FALSE(e.supported);
  ASSERT_EQ(e.candidates.size(), 1u);
  EXPECT_EQ(e.candidates.front().kernel, kGroupsOnly);
  EXPECT_EQ(e.plan.kernel_name, "");
  EXPECT_TRUE(nlohmann::json::parse(to_json(e))["chosen_by"].is_null());
}

}  // namespace
