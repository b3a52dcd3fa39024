// What a call costs the host on a GPU: `host_time` writes a line of JSON for each call that it
// knows, for scripts/gpu_check.py. The clock runs over 200 calls at a time that are only enqueued,
// so that the queue never fills; the GPU finishes before the next ones.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

namespace {

using namespace tessera;

constexpr int kCalls = 200, kRounds = 21, kSkipped = 77;
constexpr std::chrono::milliseconds kWarmUp{200};

void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
}

/// Zeroed GPU memory, which the end of the program frees.
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

/// Lists in which each row of blocks names all of them.
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

MatmulProblem matmul_of(std::int64_t size) {
  MatmulProblem problem;
  problem.a = on_gpu(DType::bf16, {size, size});
  problem.b = on_gpu(DType::bf16, {size, size});
  problem.out = on_gpu(DType::bf16, {size, size});
  return problem;
}

struct Timing {
  double us, spread;  // the median; between the quartiles, as a share of it
};

template <class Call>
Timing time_calls(const Call& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  const auto warm = Clock::now() + kWarmUp;  // clocks of the processor rise meanwhile
  while (times.size() < kRounds) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) call();
    const std::chrono::duration<double, std::micro> taken = Clock::now() - start;
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (start >= warm) times.push_back(taken.count() / kCalls);
  }
  std::sort(times.begin(), times.end());
  const double median = times[kRounds / 2];
  return {median, (times[3 * kRounds / 4] - times[kRounds / 4]) / median};
}

void call(const AttentionProblem& problem, const Execution& execution) {
  attention(problem, execution);
}
void call(const MatmulProblem& problem, const Execution& execution) { matmul(problem, execution); }

/// `run` of a plan that is made and prepared once, and the convenience call, which plans each time.
template <class Problem>
void report(const char* op, const std::string& name, const Problem& problem) {
  Execution execution;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  execution.stream = stream;
  const Plan made = plan(problem, execution);
  execution.workspace = {memory(made.workspace_bytes), made.workspace_bytes};
  execution.schedule = {memory(made.schedule_bytes), made.schedule_bytes};
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  prepare(made, problem, execution);
  const Timing planned = time_calls([&] { run(made, problem, execution); });
  const Timing whole = time_calls([&] { call(problem, execution); });
  std::printf(
      "{\"op\": \"%s\", \"call\": \"%s\", \"us\": %.3f, \"spread\": %.3f, "
      "\"with_plan_us\": %.3f, \"row\": \"%s\"}\n",
      op, name.c_str(), planned.us, planned.spread, whole.us, made.kernel_name.c_str());
  std::fflush(stdout);
  check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

}  // namespace

int main() try {
  if (cuda_device_count() == 0) {
    std::puts("no GPU here: skipped");
    return kSkipped;
  }
  report("attention", "attention B1 H16 S512 D128 bf16", attention_of(1, 512));
  // More tiles than multiprocessors, of different lengths: a counter deals them out, which is
  // cleared before.
  AttentionProblem causal = attention_of(2, 2048);
  causal.causal = true;
  report("attention", "attention B2 H16 S2048 D128 causal bf16", causal);
  report("attention", "attention B1 H16 S1024 D128 lists of 128x128 bf16",
         attention_of(1, 1024, 128));
  report("matmul", "matmul 2048x2048x2048 bf16", matmul_of(2048));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "host_time: %s\n", error.what());
  return 1;
}
