// Which kernel is chosen, why the others are not, and what explain prints.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <tessera/error.hpp>

#include "src/select/json_writer.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

constexpr Op kOps[] = {
    Op::matmul, Op::sddmm, Op::spgemm, Op::attention, Op::attention_backward, Op::merge_states};

Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape);
}

BsrMatrix blocks() {
  return {shaped({3, 16, 16}), shaped({5}, DType::i32), shaped({3}, DType::i32), 64, 64};
}

AttentionProblem some_attention() {
  AttentionProblem p;
  p.q = shaped({2, 64, 4, 32}), p.k = shaped({2, 64, 2, 32}), p.v = shaped({2, 64, 2, 32});
  p.out = shaped({2, 64, 4, 32});
  p.lse = shaped({2, 4, 64}, DType::f32);
  return p;
}

/// A problem of each operation, without memory.
AnyProblem example(Op op) {
  switch (op) {
    case Op::matmul: {
      MatmulProblem p;
      p.a = blocks(), p.b = shaped({64, 32}), p.out = shaped({64, 32});
      return p;
    }
    case Op::sddmm: {
      SddmmProblem p;
      p.a = shaped({64, 32}), p.b = shaped({32, 64}), p.out = blocks();
      return p;
    }
    case Op::spgemm: {
      SpgemmProblem p;
      p.a = blocks(), p.b = blocks();
      return p;
    }
    case Op::attention:
      return some_attention();
    case Op::attention_backward: {
      AttentionBackwardProblem p;
      p.forward = some_attention();
      p.dout = p.dq = p.forward.q, p.dk = p.dv = p.forward.k;
      return p;
    }
    case Op::merge_states: {
      MergeStatesProblem p;
      p.outs = {shaped({2, 64, 4, 32}), shaped({2, 64, 4, 32})};
      p.lses = {shaped({2, 4, 64}, DType::f32), shaped({2, 4, 64}, DType::f32)};
      p.out = shaped({2, 64, 4, 32});
      return p;
    }
  }
  return {};
}

/// Every reason given for a backend's kernels.
std::string reasons_of(const Explanation& e, Backend backend) {
  std::string all;
  for (const Candidate& c : e.candidates) {
    if (c.backend != backend) continue;
    for (const std::string& reason : c.reasons) all += reason + "; ";
  }
  return all;
}

/// Tensors without data may be described on any device: what a GPU requires of their layout holds.
TEST(Select, LayoutsCountOnTheDeviceOfThePlan) {
  MatmulProblem p;
  p.a = blocks(), p.b = shaped({64, 33}), p.out = shaped({64, 33});  // rows of 66 bytes
  const Explanation described_on_cpu = select(p, device_preset("h100"));
  for (Tensor* t :
       {&p.a.sparse.values, &p.a.sparse.row_offsets, &p.a.sparse.col_indices, &p.b.dense, &p.out})
    t->device = {DeviceKind::cuda, 3};
  EXPECT_EQ(to_text(described_on_cpu), to_text(select(p, device_preset("h100"))));
  EXPECT_NE(reasons_of(described_on_cpu, Backend::sm90).find("16 bytes"), std::string::npos)
      << reasons_of(described_on_cpu, Backend::sm90);
}

TEST(Select, AnswersForEveryPresetAndOperation) {
  for (const std::string& name : device_presets()) {
    const DeviceFacts device = device_preset(name);
    for (Op op : kOps) {
      const Explanation e = select(example(op), device, {});
      EXPECT_EQ(e.op, op);
      EXPECT_EQ(e.device, device.name);
      EXPECT_EQ(e.problem.rfind(to_string(op), 0), 0u);
      EXPECT_EQ(e.supported, device.kind == DeviceKind::cpu || op != Op::sddmm ||
                                 device.compute_capability == 90)
          << name << "\n"
          << to_text(e);
      std::vector<Backend> seen;
      bool rejected = false;
      for (const Candidate& c : e.candidates) {
        seen.push_back(c.backend);
        EXPECT_FALSE(rejected && c.reasons.empty()) << "an accepted row after a rejected one";
        rejected |= !c.reasons.empty();
        EXPECT_EQ(c.reasons.empty(), c.predicted_ms > 0);
      }
      for (Backend backend : {Backend::cpu, Backend::sm80, Backend::sm90}) {
        EXPECT_NE(std::find(seen.begin(), seen.end(), backend), seen.end())
            << "no candidate of " << to_string(backend);
      }
      if (!e.supported) continue;
      EXPECT_EQ(e.plan.op, op);
      EXPECT_EQ(e.plan.backend, e.candidates.front().backend);
      EXPECT_EQ(e.plan.kernel_name, e.candidates.front().kernel);
      EXPECT_EQ(e.plan.predicted_ms, e.candidates.front().predicted_ms);
      EXPECT_EQ(e.plan.signature, e.problem);
      const auto rows = rows_of(e.plan.backend);
      ASSERT_LT(static_cast<std::size_t>(e.plan.kernel), rows.size());
      EXPECT_EQ(rows[static_cast<std::size_t>(e.plan.kernel)].name, e.plan.kernel_name);
      EXPECT_EQ(family_of(rows[static_cast<std::size_t>(e.plan.kernel)]).op, op);
      if (device.kind == DeviceKind::cpu) {
        EXPECT_GE(e.plan.threads, 1);  // fewer than the device has where the problem is small
        EXPECT_LE(e.plan.threads, 8);
      } else {
        EXPECT_EQ(e.plan.threads, 0);
      }
    }
  }
}

std::string text(const Plan& p) {
  return std::string(to_string(p.op)) + " " + to_string(p.backend) + " " +
         std::to_string(p.kernel) + " " + p.kernel_name + " " + std::to_string(p.workspace_bytes) +
         " " + std::to_string(p.schedule_bytes) + " " + std::to_string(p.threads) + " " +
         std::to_string(p.predicted_ms) + " " + p.signature;
}

TEST(Select, ChooseAndExplainAgree) {
  for (const std::string& name : device_presets()) {
    for (Op op : kOps) {
      const DeviceFacts device = device_preset(name);
      const Explanation e = select(example(op), device, {});
      try {
        EXPECT_EQ(text(choose(example(op), device, {})), text(e.plan));
        EXPECT_TRUE(e.supported);
      } catch (const Error& error) {
        EXPECT_FALSE(e.supported);
        EXPECT_EQ(error.code(), ErrorCode::unsupported);
        EXPECT_EQ(error.what(), to_text(e));
      }
    }
  }
}

TEST(Select, TheMostSpecificBackendWinsAtEqualTimes) {
  const AnyProblem merge = example(Op::merge_states);
  EXPECT_EQ(select(merge, device_preset("h100"), {}).plan.kernel_name, "sm90_merge_r8");
  EXPECT_EQ(select(merge, device_preset("a100"), {}).plan.kernel_name, "sm80_merge_r4");
  EXPECT_EQ(select(merge, device_preset("b200"), {}).plan.kernel_name, "sm80_merge_r4");
  EXPECT_EQ(select(merge, device_preset("cpu"), {}).plan.kernel_name, "cpu_merge_r1");
}

TEST(Select, SaysWhyABackendIsRejected) {
  const Explanation h100 = select(example(Op::sddmm), device_preset("h100"), {});
  EXPECT_EQ(reasons_of(h100, Backend::cpu), "runs on a CPU, the device is NVIDIA H100 80GB SXM; ");
  EXPECT_EQ(reasons_of(h100, Backend::sm80), "no kernel for sddmm in this version; ");

  const AnyProblem merge = example(Op::merge_states);
  EXPECT_EQ(reasons_of(select(merge, device_preset("a100"), {}), Backend::sm90),
            "requires compute capability 9.x, the device has 8.0; ");
  EXPECT_EQ(reasons_of(select(merge, device_preset("b200"), {}), Backend::sm90),
            "requires compute capability 9.x, the device has 10.0; ");
  EXPECT_EQ(reasons_of(select(merge, device_preset("cpu"), {}), Backend::sm80),
            "runs on a GPU, the device is CPU: AVX2, 8 threads; ");
  DeviceFacts turing = device_preset("a100");
  turing.compute_capability = 75;
  EXPECT_EQ(reasons_of(select(merge, turing, {}), Backend::sm80),
            "requires compute capability 8.0 or later, the device has 7.5; ");
}

TEST(Select, AForcedBackendExcludesTheOthers) {
  Execution execution;
  execution.backend = Backend::sm80;
  const Explanation e = select(example(Op::merge_states), device_preset("h100"), execution);
  ASSERT_TRUE(e.supported);
  EXPECT_EQ(e.plan.kernel_name, "sm80_merge_r4");
  EXPECT_EQ(reasons_of(e, Backend::sm90), "execution.backend requires sm80; ");

  execution.backend = Backend::cpu;
  EXPECT_FALSE(select(example(Op::merge_states), device_preset("h100"), execution).supported);
}

TEST(Select, ThreadsFollowTheCallerTheDeviceAndTheWork) {
  const auto product = [](std::int64_t size) {
    MatmulProblem problem;
    problem.a = tensor(nullptr, DType::f32, {size, size});
    problem.b = tensor(nullptr, DType::f32, {size, size});
    problem.out = tensor(nullptr, DType::f32, {size, size});
    return AnyProblem(problem);
  };
  Execution execution;
  EXPECT_EQ(select(product(1024), device_preset("cpu"), execution).plan.threads, 8);
  EXPECT_EQ(select(product(16), device_preset("cpu"), execution).plan.threads, 1);
  execution.threads = 3;
  EXPECT_EQ(select(product(1024), device_preset("cpu"), execution).plan.threads, 3);
  const AnyProblem problem = example(Op::matmul);
  execution.threads = -1;
  try {
    select(problem, device_preset("cpu"), execution);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "execution: threads: expected 0 or more, got -1");
  }
}

TEST(Select, TensorsWithDataLiveWhereTheySay) {
  float value = 0;  // never read: planning looks at whether there is a pointer
  MergeStatesProblem merge = std::get<MergeStatesProblem>(example(Op::merge_states));
  merge.out.data = &value;
  const Explanation e = select(merge, device_preset("h100"), {});
  EXPECT_FALSE(e.supported);
  EXPECT_NE(reasons_of(e, Backend::sm90)
                .find("the tensors are on the CPU, the device is NVIDIA H100 80GB SXM"),
            std::string::npos);
  const std::vector<Backend> built = built_backends();
  const bool has_sm90 = std::find(built.begin(), built.end(), Backend::sm90) != built.end();
  EXPECT_EQ(reasons_of(e, Backend::sm90).find("not in this build") == std::string::npos, has_sm90);
}

TEST(Rejections, NameTheArgumentItsValueAndWhatIsSupported) {
  using Words = std::vector<std::string>;
  MatmulShape s;
  s.a.dtype = s.b.dtype = DType::e4m3, s.out = DType::bf16;
  EXPECT_EQ(rejections(rows_of(Backend::cpu)[0], s, device_preset("cpu")), Words{});
  s.device.kind = DeviceKind::cuda;
  const KernelRow& gpu = row_named("sm90_matmul_m128_n256_k64_s4");
  EXPECT_EQ(rejections(gpu, s, device_preset("h100")),
            Words{"a: dtype e4m3 is not supported (supported: f16, bf16)"});
  EXPECT_EQ(rejections(gpu, s, device_preset("a100")).front(),
            "requires compute capability 9.x, the device has 8.0");
  s.a.dtype = s.b.dtype = DType::f16;
  EXPECT_EQ(rejections(gpu, s, device_preset("h100")), Words{});
  s.out = DType::u8;
  EXPECT_EQ(rejections(gpu, s, device_preset("h100")),
            Words{"out: dtype u8 is not supported (supported: f32, f16, bf16)"});

  AttentionShape attention;
  attention.device.kind = DeviceKind::cuda;
  attention.dtype = attention.out = DType::bf16, attention.kv_layout = KvLayout::paged;
  attention.dim = attention.dim_v = 100, attention.page = 16;
  EXPECT_EQ(
      rejections(row_named("sm90_attention_d128_q128_k128_s2"), attention, device_preset("h100"))
          .front(),
      "page_table: expected pages of a multiple of 64 keys");
}

TEST(Explain, ARefusalHasOneLinePerFamilyTheNearestMissFirst) {
  AttentionProblem p = some_attention();
  for (Tensor* t : {&p.q, &p.k, &p.v}) t->dtype = DType::f32;
  const std::string text = to_text(select(p, device_preset("h100"), {}));
  const auto at = text.find("chosen    no kernel supports this problem\n");
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.substr(text.find("rejected")),
            "rejected  sm90_decode     q, k and v: dtype f32 is not supported (supported: f16, "
            "bf16, e4m3)\n"
            "rejected  sm90_attention  q, k and v: dtype f32 is not supported (supported: f16, "
            "bf16)\n"
            "rejected  sm80_attention  q, k and v: dtype f32 is not supported (supported: f16, "
            "bf16)\n"
            "rejected  cpu_attention   runs on a CPU, the device is NVIDIA H100 80GB SXM\n");
}

/// A string with bytes that JSON writers often get wrong.
std::string hostile_text() {
  std::string text = "quote \" backslash \\ newline \n tab \t bell \a del \x7f nul ";
  text.push_back('\0');
  text += "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80";              // well-formed
  text += " \xff\xfe \xc3 \xc0\x80 \xed\xa0\x80 \xf5\x80\x80\x80";  // not UTF-8
  text += "\xf0\x9f";                                               // cut off
  return text;
}

TEST(Json, SurvivesHostileStringsAndNumbers) {
  Explanation e = select(example(Op::merge_states), device_preset("h100"), {});
  e.problem = hostile_text();
  e.useful_flops = std::numeric_limits<double>::quiet_NaN();
  e.bytes = std::numeric_limits<double>::infinity();
  e.candidates[0].kernel = hostile_text();
  const nlohmann::json json = nlohmann::json::parse(to_json(e));
  const std::string problem = json["problem"];
  EXPECT_EQ(problem.substr(0, 50), e.problem.substr(0, 50));
  EXPECT_NE(problem.find("caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"), std::string::npos);
  EXPECT_NE(problem.find("\xef\xbf\xbd"), std::string::npos);
  EXPECT_TRUE(json["useful_flops"].is_null());
  EXPECT_TRUE(json["bytes"].is_null());
}

TEST(Json, EveryByteAndPairOfBytesParses) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second)};
      const auto parsed = nlohmann::json::parse(json_quoted(text));
      if (first < 0x80 && second < 0x80) {
        ASSERT_EQ(parsed.get<std::string>(), text);
      }
    }
  }
}

TEST(Json, SaysWhatTheExplanationSays) {
  const Explanation e = select(example(Op::merge_states), device_preset("a100"), {});
  const nlohmann::json json = nlohmann::json::parse(to_json(e));
  EXPECT_EQ(json["op"], "merge_states");
  EXPECT_EQ(json["supported"], true);
  EXPECT_EQ(json["bytes"].get<double>(), e.bytes);
  EXPECT_EQ(json["plan"]["kernel_name"], "sm80_merge_r4");
  EXPECT_EQ(json["plan"]["workspace_bytes"], e.plan.workspace_bytes);
  ASSERT_EQ(json["candidates"].size(), e.candidates.size());
  EXPECT_EQ(json["candidates"][0]["accepted"], true);
  EXPECT_EQ(json["candidates"][0]["predicted_ms"].get<double>(), e.plan.predicted_ms);
  EXPECT_EQ(json["candidates"][1]["accepted"], false);
  EXPECT_EQ(json["candidates"][1]["reasons"][0], e.candidates[1].reasons[0]);

  const Explanation none = select(example(Op::sddmm), device_preset("a100"), {});
  const nlohmann::json empty = nlohmann::json::parse(to_json(none));
  EXPECT_TRUE(empty["plan"].is_null());
  const auto& all = empty["candidates"];
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const auto& one) {
    return one["kernel"].is_null() && one["family"] == "sm80";
  }));
}

TEST(Text, NamesEveryFamilyAndItsNearestMiss) {
  for (Op op : kOps) {
    const Explanation e = select(example(op), device_preset("l4"), {});
    const std::string text = to_text(e);
    EXPECT_NE(text.find(e.problem), std::string::npos);
    EXPECT_NE(text.find(e.device), std::string::npos);
    std::map<std::string, std::size_t> fewest;
    for (const Candidate& c : e.candidates) {
      if (c.reasons.empty()) {
        EXPECT_NE(text.find("accepted  " + c.kernel), std::string::npos) << text;
        continue;
      }
      const auto [at, is_new] = fewest.emplace(c.family, c.reasons.size());
      at->second = std::min(at->second, c.reasons.size());
    }
    for (const auto& [family, reasons] : fewest)
      EXPECT_NE(text.find("rejected  " + family + " "), std::string::npos) << text;
    EXPECT_EQ(static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')),
              4 + 2 * e.supported + fewest.size() +
                  static_cast<std::size_t>(
                      std::count_if(e.candidates.begin(), e.candidates.end(),
                                    [](const Candidate& c) { return c.reasons.empty(); })));
  }
}

}  // namespace
