// Measures the host time of calls that run on a GPU. `host_time` writes one line of JSON per call,
// for tools/gpu_check.py. The clock runs over 200 calls at a time that are only enqueued, so that
// the queue never fills; the GPU then finishes before the next calls. Calls alternate with launches
// of an empty kernel, the lower bound of any call, because the speed of hosts varies.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

constexpr int kCalls = 200, kRounds = 41, kSkipped = 77;
constexpr int kWarmUp = 5;  // rounds before the CPU's clock rate is stable

__global__ void empty_kernel() {}

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

/// GPU memory filled with zeros, freed at the end of the program.
void* memory(std::int64_t bytes) {
  void* data = nullptr;
  if (bytes == 0) return data;
  check(cudaMalloc(&data, static_cast<std::size_t>(bytes)), "cudaMalloc");
  check(cudaMemset(data, 0, static_cast<std::size_t>(bytes)), "cudaMemset");
  return data;
}

Tensor on_gpu(DType dtype, std::initializer_list<std::int64_t> sizes) {
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t size : sizes) bytes *= size;
  return tensor(memory(bytes), dtype, sizes, {DeviceKind::cuda, 0});
}

/// A mask whose lists name all blocks.
BlockMask whole_mask(std::int64_t length, std::int64_t block) {
  const std::int64_t rows = length / block;
  const std::vector<std::int32_t> counts(static_cast<std::size_t>(rows),
                                         static_cast<std::int32_t>(rows));
  std::vector<std::int32_t> indices(static_cast<std::size_t>(rows * rows));
  for (std::size_t i = 0; i < indices.size(); ++i)
    indices[i] = static_cast<std::int32_t>(i % static_cast<std::size_t>(rows));
  BlockMask mask{.block_q = block, .block_kv = block};
  mask.full.counts = on_gpu(DType::i32, {1, 1, rows});
  mask.full.indices = on_gpu(DType::i32, {1, 1, rows, rows});
  const auto copy = [](const Tensor& to, const std::vector<std::int32_t>& from) {
    check(cudaMemcpy(to.data, from.data(), from.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
  };
  copy(mask.full.counts, counts);
  copy(mask.full.indices, indices);
  return mask;
}

AttentionProblem attention_of(std::int64_t batch, std::int64_t length, std::int64_t block = 0) {
  AttentionProblem problem;
  for (Tensor* t : {&problem.q, &problem.k, &problem.v, &problem.out})
    *t = on_gpu(DType::bf16, {batch, length, 16, 128});
  if (block > 0) problem.mask = whole_mask(length, block);
  return problem;
}

MatmulProblem matmul_of(std::int64_t rows, std::int64_t size) {
  MatmulProblem problem;
  problem.a = on_gpu(DType::bf16, {rows, size});
  problem.b = on_gpu(DType::bf16, {size, size});
  problem.out = on_gpu(DType::bf16, {rows, size});
  return problem;
}

/// A call, and its microseconds in each round.
struct Work {
  std::function<void()> call;
  std::vector<double> times{};

  double part(int quarters) const {  // quartile of the times: 0 is the minimum, 2 the median
    std::vector<double> sorted = times;
    std::sort(sorted.begin(), sorted.end());
    return sorted[(sorted.size() - 1) * static_cast<std::size_t>(quarters) / 4];
  }
  double median() const { return part(2); }
  double spread() const { return (part(3) - part(1)) / median(); }
};

void take_turns(const std::vector<Work*>& all) {
  using Clock = std::chrono::steady_clock;
  for (int round = -kWarmUp; round < kRounds; ++round) {
    for (Work* work : all) {
      const auto start = Clock::now();
      for (int i = 0; i < kCalls; ++i) work->call();
      const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
      check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      if (round >= 0) work->times.push_back(taken.count() / kCalls);
    }
  }
}

void call(const AttentionProblem& problem, const Execution& execution) {
  attention(problem, execution);
}
void call(const MatmulProblem& problem, const Execution& execution) { matmul(problem, execution); }

/// The calls of one problem: `run` of a prepared plan (planned); the convenience call, which looks
/// up its plan by shape (whole); planning.
struct Measured {
  std::string op, name, row;
  Work planned, whole, planning;
};

template <class Problem>
Measured measured(const char* op, const char* name, const Problem& problem, cudaStream_t stream) {
  Execution execution;
  execution.stream = stream;
  const Plan made = plan(problem, execution);
  execution.workspace = {memory(made.workspace_bytes), made.workspace_bytes};
  execution.schedule = {memory(made.schedule_bytes), made.schedule_bytes};
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  prepare(made, problem, execution);
  const AnyProblem any(problem);
  return {op,
          name,
          made.kernel_name,
          {[=] { run(made, problem, execution); }},
          {[=] { call(problem, execution); }},
          {[=] { static_cast<void>(plan(any)); }}};
}

}  // namespace

int main() try {
  if (cuda_device_count() == 0) {
    std::puts("no GPU here: skipped");
    return kSkipped;
  }
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  // More tiles than SMs, of different lengths: dynamic tiles.
  AttentionProblem causal = attention_of(2, 2048);
  causal.causal = true;
  std::vector<Measured> calls = {
      measured("attention", "attention B1 H16 S512 D128 bf16", attention_of(1, 512), stream),
      measured("attention", "attention B2 H16 S2048 D128 causal bf16", causal, stream),
      measured("attention", "attention B1 H16 S1024 D128 lists of 128x128 bf16",
               attention_of(1, 1024, 128), stream),
      measured("matmul", "matmul 2048x2048x2048 bf16", matmul_of(2048, 2048), stream),
      measured("matmul", "matmul 100x2048x2048 bf16", matmul_of(100, 2048), stream)};
  Work launch{[stream] {
    empty_kernel<<<1, 32, 0, stream>>>();
    check(cudaGetLastError(), "empty_kernel");
  }};
  std::vector<Work*> all = {&launch};
  for (Measured& one : calls) all.insert(all.end(), {&one.planned, &one.whole, &one.planning});
  take_turns(all);
  for (const Measured& one : calls) {
    std::printf(
        "{\"op\": \"%s\", \"call\": \"%s\", \"us\": %.3f, \"spread\": %.3f, "
        "\"least_us\": %.3f, \"launch_us\": %.3f, \"with_plan_us\": %.3f, \"plan_us\": %.3f, "
        "\"row\": \"%s\"}\n",
        one.op.c_str(), one.name.c_str(), one.planned.median(), one.planned.spread(),
        one.planned.part(0), launch.median(), one.whole.median(), one.planning.median(),
        one.row.c_str());
  }
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "host_time: %s\n", error.what());
  return 1;
}
