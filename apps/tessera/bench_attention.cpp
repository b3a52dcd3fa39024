#include <tessera/tessera.hpp>

#include "apps/tessera/bench.hpp"
#include "apps/tessera/coprocess.hpp"
#include "apps/tessera/fill.hpp"
#include "apps/tessera/places.hpp"
#include "apps/tessera/torch_peer.hpp"

namespace tessera::tool {

namespace {

constexpr std::int64_t kHeads = 8, kLength = 4096, kDim = 64;

// Dense attention with its tensors.
struct Attention {
  HostTensor q, k, v, out;
  double flops;

  explicit Attention(DType dtype, std::int64_t length = kLength)
      : q(normal_tensor(dtype, {1, length, kHeads, kDim}, 1)),
        k(normal_tensor(dtype, {1, length, kHeads, kDim}, 2)),
        v(normal_tensor(dtype, {1, length, kHeads, kDim}, 3)),
        out(dtype, {1, length, kHeads, kDim}),
        flops(4.0 * static_cast<double>(length) * static_cast<double>(length) *
              static_cast<double>(kHeads * kDim)) {}

  AttentionProblem problem() const {
    return {.q = q.view(), .k = k.view(), .v = v.view(), .out = out.view()};
  }
  double run(const Execution& execution) const {
    return time_ms([&] { attention(problem(), execution); });
  }
};

Json params(const char* dtype, std::int64_t length) {
  return {{"dtype", dtype}, {"b", 1}, {"h", kHeads}, {"hk", kHeads}, {"s", length}, {"d", kDim}};
}

CaseResult start(const Attention& ours, const char* dtype, const Timing& time,
                 const BenchSettings& settings) {
  CaseResult result;
  result.op = "attention";
  result.params = params(dtype, kLength);
  result.useful_flops = ours.flops;
  result.ours = time;
  set_plan(result, ours.problem(), settings.execution);
  return result;
}

// Without PyTorch, attention has to reach half of the rate of our own product.
CaseResult against_torch(const BenchSettings& settings) {
  constexpr std::int64_t kSize = 2048;
  const Attention ours(DType::f32);
  TorchPeer torch(settings.python, settings.threads, 1, kHeads, kLength, kDim);
  const HostTensor a = normal_tensor(DType::f32, {kSize, kSize}, 4);
  HostTensor product(DType::f32, {kSize, kSize});
  const MatmulProblem matmul_problem{.a = a, .b = a, .out = product};
  std::vector<std::function<double()>> sides{
      [&] { return ours.run(settings.execution); },
      [&] { return time_ms([&] { matmul(matmul_problem, settings.execution); }); }};
  const bool available = torch.unavailable().empty();
  if (available) sides.push_back([&] { return torch.run_ms(); });
  const auto times = interleave(sides, {.seconds = settings.seconds});

  CaseResult result = start(ours, "f32", times[0], settings);
  Peer peer{.name = "torch", .version = torch.version()};
  peer.unavailable = torch.unavailable();
  const Peer own{.name = "ours_matmul", .time = times[1], .flops = 2.0 * kSize * kSize * kSize};
  if (available) {
    peer.time = times[2];
    peer.flops = ours.flops;
    result.ratio_of = "our rate / PyTorch's";
    result.ratio = times[2].ms / times[0].ms;
    result.must = 1.0;
  } else {
    result.ratio_of = "our rate / our rate of matmul";
    result.ratio = gflops(ours.flops, times[0]) / gflops(own.flops, own.time);
    result.must = 0.5;
  }
  result.peers = {peer, own};
  return result;
}

CaseResult sparse_against_dense(const BenchSettings& settings) {
  constexpr std::int64_t kBlock = 64, kBlocks = kLength / kBlock;
  constexpr double kDensity = 0.125;
  constexpr std::uint64_t kSeed = 1;
  const Attention dense(DType::f32);
  std::vector<Pattern> patterns;
  for (std::int64_t head = 0; head < kHeads; ++head)
    patterns.push_back(
        patterns::random(kBlocks, kBlocks, kDensity, kSeed + static_cast<std::uint64_t>(head)));
  const HostBlockMask mask = make_block_mask(patterns, 1, kHeads, kBlock, kBlock);
  AttentionProblem sparse = dense.problem();
  sparse.mask = mask.view();
  const auto times =
      interleave({[&] { return time_ms([&] { attention(sparse, settings.execution); }); },
                  [&] { return dense.run(settings.execution); }},
                 {.seconds = settings.seconds});

  CaseResult result = start(dense, "f32", times[0], settings);
  result.params.update({{"block_q", kBlock},
                        {"block_kv", kBlock},
                        {"density", kDensity},
                        {"pattern", "random"},
                        {"seed", kSeed}});
  result.useful_flops = dense.flops * kDensity;
  set_plan(result, sparse, settings.execution);
  result.peers.push_back({.name = "ours_dense", .time = times[1], .flops = dense.flops});
  result.ratio_of = "dense time / sparse time";
  result.ratio = times[1].ms / times[0].ms;
  result.must = 6;
  return result;
}

CaseResult bf16_against_f32(const BenchSettings& settings) {
  const Attention half(DType::bf16), full(DType::f32);
  const auto times = interleave(
      {[&] { return half.run(settings.execution); }, [&] { return full.run(settings.execution); }},
      {.seconds = settings.seconds});
  CaseResult result = start(half, "bf16", times[0], settings);
  result.peers.push_back({.name = "ours_f32", .time = times[1], .flops = full.flops});
  result.ratio_of = "bf16 time / f32 time";
  result.ratio = times[0].ms / times[1].ms;
  result.must = 1.4;
  result.at_least = false;
  return result;
}

CaseResult memory(const BenchSettings& settings) {
  constexpr std::int64_t kLong = 16384;
  constexpr double kMiB = 1024 * 1024;
  // A process of its own: the peak of this one is that of the cases before.
  Coprocess probe({own_path().string(), "bench", "--memory-probe", std::to_string(kLong),
                   "--threads", std::to_string(settings.threads)});
  const Json answer = Json::parse(probe.receive(600));
  CaseResult result;
  result.op = "attention";
  result.params = params("f32", kLong);
  result.useful_flops = 4.0 * kLong * kLong * kHeads * kDim;
  result.ours = {answer.at("ms").get<double>(), 0, 1};
  result.ratio_of = "MiB beyond the tensors";
  result.ratio = answer.at("extra_bytes").get<double>() / kMiB;
  result.must = 64;
  result.at_least = false;
  result.params["extra_bytes"] = answer.at("extra_bytes");
  result.params["workspace_bytes"] = answer.at("workspace_bytes");
  result.row = answer.at("row").get<std::string>();
  return result;
}

}  // namespace

std::vector<BenchCase> attention_cases() {
  return {
      {"attention", "f32, 8 heads, 4096 tokens, dim 64 against PyTorch", against_torch},
      {"attention_sparse", "the same, random blocks of 64 x 64, density 1/8, against dense",
       sparse_against_dense},
      {"attention_bf16", "the same dense, bf16 against f32", bf16_against_f32},
      {"attention_memory", "the same, 16384 tokens: memory beyond the tensors", memory},
  };
}

}  // namespace tessera::tool
