#include <tessera/tessera.hpp>

#include "apps/tessera/bench.hpp"
#include "apps/tessera/fill.hpp"
#include "apps/tessera/openblas.hpp"

namespace tessera::tool {

namespace {

// A dense product with its tensors.
struct DenseProduct {
  HostTensor a, b, out;
  double flops;

  DenseProduct(DType dtype, std::int64_t m, std::int64_t n, std::int64_t k)
      : a(normal_tensor(dtype, {m, k}, 1)),
        b(normal_tensor(dtype, {k, n}, 2)),
        out(dtype, {m, n}),
        flops(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k)) {}

  MatmulProblem problem() const { return {.a = a, .b = b, .out = out}; }
  double run(const Execution& execution) const {
    return time_ms([&] { matmul(problem(), execution); });
  }
};

CaseResult matmul_against_openblas(const BenchSettings& settings) {
  constexpr std::int64_t kSize = 2048;
  const DenseProduct ours(DType::f32, kSize, kSize, kSize);
  const OpenBlas blas(settings.threads);
  HostTensor blas_out(DType::f32, {kSize, kSize});
  std::vector<std::function<double()>> sides{[&] { return ours.run(settings.execution); }};
  if (blas.unavailable().empty())
    sides.push_back([&] {
      return time_ms([&] {
        blas.sgemm(kSize, kSize, kSize, ours.a.data<float>(), ours.b.data<float>(),
                   blas_out.data<float>());
      });
    });
  const auto times = interleave(sides, {.seconds = settings.seconds});

  CaseResult result;
  result.op = "matmul";
  result.params = {{"dtype", "f32"}, {"m", kSize}, {"n", kSize}, {"k", kSize}};
  result.useful_flops = ours.flops;
  result.ours = times[0];
  set_plan(result, ours.problem(), settings.execution);
  Peer peer{.name = "openblas", .version = blas.version()};
  peer.unavailable = blas.unavailable();
  result.ratio_of = "our rate / OpenBLAS's";
  result.must = 0.7;
  if (times.size() > 1) {
    peer.time = times[1];
    peer.flops = ours.flops;
    result.ratio = peer.time.ms / result.ours.ms;
  }
  result.peers.push_back(peer);
  return result;
}

CaseResult bsr_against_dense(const BenchSettings& settings, std::int64_t block, double must) {
  constexpr std::int64_t kRows = 4096, kInner = 4096, kCols = 1024;
  constexpr double kDensity = 0.1;
  constexpr std::uint64_t kSeed = 1;
  const DenseProduct dense(DType::f32, kRows, kCols, kInner);
  const Pattern pattern = patterns::random(kRows / block, kInner / block, kDensity, kSeed);
  HostBsr a = make_bsr(pattern, block, block, DType::f32);
  fill_normal(a.values, 3);
  const MatmulProblem sparse{.a = a, .b = dense.b, .out = dense.out};
  const auto times =
      interleave({[&] { return time_ms([&] { matmul(sparse, settings.execution); }); },
                  [&] { return dense.run(settings.execution); }},
                 {.seconds = settings.seconds});

  CaseResult result;
  result.op = "bsr_matmul";
  result.params = {{"dtype", "f32"}, {"m", kRows},          {"n", kCols},          {"k", kInner},
                   {"block", block}, {"density", kDensity}, {"pattern", "random"}, {"seed", kSeed}};
  result.useful_flops = 2.0 * static_cast<double>(pattern.stored() * block * block * kCols);
  result.ours = times[0];
  set_plan(result, sparse, settings.execution);
  result.peers.push_back({.name = "ours_dense", .time = times[1], .flops = dense.flops});
  result.ratio_of = "rate on stored blocks / our dense rate";
  result.ratio = gflops(result.useful_flops, times[0]) / gflops(dense.flops, times[1]);
  result.must = must;
  return result;
}

CaseResult bf16_against_f32(const BenchSettings& settings) {
  constexpr std::int64_t kSize = 2048;
  const DenseProduct half(DType::bf16, kSize, kSize, kSize), full(DType::f32, kSize, kSize, kSize);
  const auto times = interleave(
      {[&] { return half.run(settings.execution); }, [&] { return full.run(settings.execution); }},
      {.seconds = settings.seconds});
  CaseResult result;
  result.op = "matmul";
  result.params = {{"dtype", "bf16"}, {"m", kSize}, {"n", kSize}, {"k", kSize}};
  result.useful_flops = half.flops;
  result.ours = times[0];
  set_plan(result, half.problem(), settings.execution);
  result.peers.push_back({.name = "ours_f32", .time = times[1], .flops = full.flops});
  result.ratio_of = "bf16 time / f32 time";
  result.ratio = times[0].ms / times[1].ms;
  result.must = 1.4;
  result.at_least = false;
  return result;
}

}  // namespace

std::vector<BenchCase> product_cases() {
  auto bsr = [](std::int64_t block, double must) {
    return [=](const BenchSettings& settings) { return bsr_against_dense(settings, block, must); };
  };
  return {
      {"matmul", "f32 2048 x 2048 x 2048 against OpenBLAS", matmul_against_openblas},
      {"matmul_bf16", "bf16 2048 x 2048 x 2048 against f32", bf16_against_f32},
      {"bsr_matmul_64", "f32 4096 x 4096 x 1024, density 0.1, blocks of 64", bsr(64, 0.6)},
      {"bsr_matmul_32", "the same, blocks of 32", bsr(32, 0.5)},
      {"bsr_matmul_16", "the same, blocks of 16", bsr(16, 0.4)},
  };
}

}  // namespace tessera::tool
