// Attention in a model of several layers that share one block mask: planned once, prepared once,
// run in every layer, timed beside dense attention and checked against a plain softmax.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "memory.hpp"

using namespace tessera;

constexpr std::int64_t kHeads = 4, kDim = 64, kBlock = 64;
constexpr int kLayers = 4;
constexpr double kTolerance = 4e-3;  // four steps of an f16 near one

/// Runs every layer after planning and preparing once; returns the milliseconds of one layer.
double run_layers(Memory& memory, const std::vector<AttentionProblem>& layers) {
  const Plan once = plan(layers[0]);
  Execution execution;
  execution.workspace = memory.buffer(once.workspace_bytes);
  execution.schedule = memory.buffer(once.schedule_bytes);
  prepare(once, layers[0], execution);  // reads the mask: again only when the mask changes
  double ms = 0;
  for (int round = 0; round < 2; ++round) {  // the first one warms up
    const auto start = std::chrono::steady_clock::now();
    for (const AttentionProblem& layer : layers) run(once, layer, execution);
    memory.wait();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    ms = taken.count() / kLayers;
  }
  return ms;
}

/// The largest difference between a query's output and its softmax, added up in plain loops.
double error_of(const AttentionProblem& problem, const Pattern& pattern, std::int64_t query) {
  const auto at = [](const Tensor& t, std::int64_t row, std::int64_t head, std::int64_t i) {
    return double{load_as_float(t.data, t.dtype, (row * kHeads + head) * kDim + i)};
  };
  double worst = 0;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    std::vector<double> sum(kDim, 0.0);
    double total = 0;
    for (std::int64_t key = 0; key < problem.k.size(1); ++key) {
      if (!pattern.contains(query / kBlock, key / kBlock)) continue;
      double score = 0;
      for (std::int64_t i = 0; i < kDim; ++i)
        score += at(problem.q, query, head, i) * at(problem.k, key, head, i);
      const double weight = std::exp(score / std::sqrt(double{kDim}));
      total += weight;
      for (std::int64_t i = 0; i < kDim; ++i)
        sum[static_cast<std::size_t>(i)] += weight * at(problem.v, key, head, i);
    }
    for (std::int64_t i = 0; i < kDim; ++i) {
      const double wanted = sum[static_cast<std::size_t>(i)] / total;
      worst = std::fmax(worst, std::fabs(at(problem.out, query, head, i) - wanted));
    }
  }
  return worst;
}

int main(int argc, char** argv) try {
  char* end = argc > 1 ? argv[1] : nullptr;
  const std::int64_t length = argc > 1 ? std::strtoll(argv[1], &end, 10) : 4096;
  if (argc > 2 || (end != nullptr && *end != 0) || length < kBlock || length % kBlock != 0) {
    std::fprintf(stderr, "sparse_layers: expected [LENGTH], a multiple of %d, got %s\n",
                 static_cast<int>(kBlock), argv[argc - 1]);
    return 2;
  }
  // A window, the first blocks, and three more blocks in each row (BigBird).
  const Pattern pattern = patterns::bigbird(length / kBlock, length / kBlock, 1, 1, 3, /*seed=*/7);
  const HostBlockMask mask = make_block_mask(pattern, kBlock, kBlock);

  // Shapes alone tell what would run, and where.
  AttentionProblem problem;
  for (Tensor* t : {&problem.q, &problem.k, &problem.v, &problem.out})
    *t = tensor(nullptr, DType::f16, {1, length, kHeads, kDim});
  problem.mask = mask.view();
  Device device;
#ifdef EXAMPLE_CUDA
  const Device gpu{DeviceKind::cuda, 0};
  if (cuda_device_count() > 0 && explain(problem, device_facts(gpu)).supported) device = gpu;
#endif
  std::printf("%s\n", to_text(explain(problem, device_facts(device))).c_str());

  // The same problem with memory, a set for each layer; only the mask is shared.
  Memory memory(device);
  problem.mask.full.counts = memory.copy(mask.full_counts);
  problem.mask.full.indices = memory.copy(mask.full_indices);
  std::vector<AttentionProblem> sparse(kLayers, problem), dense;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (AttentionProblem& layer : sparse) {
    for (Tensor* t : {&layer.q, &layer.k, &layer.v, &layer.out})
      *t = memory.tensor(DType::f16, {1, length, kHeads, kDim});
    for (Tensor* t : {&layer.q, &layer.k, &layer.v})
      for (std::int64_t i = 0; i < t->numel(); ++i)
        store_from_float(t->data, t->dtype, i, normal(random));
  }
  dense = sparse;
  for (AttentionProblem& layer : dense) layer.mask = {};
  const double dense_ms = run_layers(memory, dense), sparse_ms = run_layers(memory, sparse);

  double worst = 0;
  for (const AttentionProblem& layer : sparse)
    for (std::int64_t query = 0; query < length; query += 1 + length / 32)
      worst = std::fmax(worst, error_of(layer, pattern, query));
  std::printf("%d layers on %s: %.2f ms a layer, dense %.2f ms, %.1f times as fast\n", kLayers,
              to_string(device).c_str(), sparse_ms, dense_ms, dense_ms / sparse_ms);
  std::printf("%.1f%% of the blocks visited; largest error %.2g, accepted up to %.2g\n",
              pattern.density() * 100, worst, kTolerance);
  return worst <= kTolerance ? 0 : 1;
} catch (const Error& error) {
  std::fprintf(stderr, "sparse_layers: %s\n", error.what());
  return 1;
}
