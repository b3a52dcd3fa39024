// GPU time of a kernel beyond its work: empty kernels with one CTA per SM, one after the other.
// Host time is excluded: in a stream, launches queue behind a delay kernel of some milliseconds; in
// a graph there is none.
#include <algorithm>
#include <chrono>
#include <vector>

#include "bench/ceilings/steps.hpp"
#include "bench/ceilings/timing.hpp"
#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/launch.cuh"

namespace tessera::ceilings {
namespace {

constexpr int kThreads = 128;
constexpr int kLaunches = 400;  // fewer than a stream queues before the host blocks
constexpr int kReplays = 4;
constexpr double kDelaySeconds = 0.004, kLongestDelay = 0.2;

__global__ void __launch_bounds__(kThreads) empty_kernel() {}

/// Lets the next grid begin at once, and waits for the previous one.
__global__ void __launch_bounds__(kThreads) overlapping_kernel() {
  cuda::let_next_grid_begin();
  cuda::wait_for_grid_before();
}

__global__ void delay_kernel(unsigned long long nanoseconds) {
  const auto now = [] {
    unsigned long long time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  const unsigned long long begin = now();
  while (now() - begin < nanoseconds) {
  }
}

void launch_empty(unsigned blocks, cudaStream_t stream) {
  empty_kernel<<<blocks, kThreads, 0, stream>>>();
  check(cudaGetLastError(), "empty_kernel");
}

void launch_overlapping(unsigned blocks, cudaStream_t stream) {
  cuda::Kernel<overlapping_kernel>::launch({.name = "overlapping_kernel",
                                            .grid = blocks,
                                            .threads = kThreads,
                                            .stream = stream,
                                            .overlapped = true});
}

double host_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of GPU time per launch in a stream. Retries with a longer delay if queueing took the
/// host longer than the delay.
double stream_seconds(unsigned blocks, cudaStream_t stream) {
  Event begin, end;
  for (double delay = kDelaySeconds; delay <= kLongestDelay; delay *= 2) {
    delay_kernel<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(delay * 1e9));
    check(cudaGetLastError(), "delay_kernel");
    const double start = host_seconds();
    begin.record(stream);
    for (int i = 0; i < kLaunches; ++i) launch_empty(blocks, stream);
    end.record(stream);
    const double queued = host_seconds() - start;
    end.wait();
    if (queued < delay / 2) return end.seconds_since(begin) / kLaunches;
  }
  throw Error(ErrorCode::device, "launch: the host took longer than " +
                                     std::to_string(kLongestDelay) + " s to queue " +
                                     std::to_string(kLaunches) + " launches");
}

void measure_stream(const Card& card, double, Figures& figures) {
  const Stream stream;
  const auto blocks = static_cast<unsigned>(card.units);
  stream_seconds(blocks, stream);  // loads the code
  figures.emplace_back("launch_us",
                       1e6 * median_of_rounds([&] { return stream_seconds(blocks, stream); }));
}

/// A graph of kernel nodes in sequence, captured from a stream.
class Chain {
 public:
  Chain(cudaStream_t stream, void (*launch)(unsigned, cudaStream_t), unsigned blocks) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    for (int i = 0; i < kLaunches; ++i) launch(blocks, stream);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  ~Chain() { cudaGraphExecDestroy(executable_); }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;
  void replay(cudaStream_t stream) const {
    check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch");
  }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

/// Seconds per node, over several replays of the graph.
double node_seconds(const Chain& chain, cudaStream_t stream) {
  Event begin, end;
  chain.replay(stream);  // excludes the start of a replay
  begin.record(stream);
  for (int i = 0; i < kReplays; ++i) chain.replay(stream);
  end.record(stream);
  end.wait();
  return end.seconds_since(begin) / (kReplays * kLaunches);
}

Step graph_step(const char* name, bool for_hopper, void (*launch)(unsigned, cudaStream_t)) {
  return {"launch", name, for_hopper, [=](const Card& card, double, Figures& figures) {
            const Stream stream;
            launch(static_cast<unsigned>(card.units),
                   stream);  // loads the code
            check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
            const Chain chain(stream, launch, static_cast<unsigned>(card.units));
            chain.replay(stream);
            const double seconds = median_of_rounds([&] { return node_seconds(chain, stream); });
            figures.emplace_back(std::string(name) + "_us", seconds * 1e6);
          }};
}

}  // namespace

std::vector<Step> launch_steps() {
  return {{"launch", "launch", false, measure_stream},
          graph_step("graph_launch", false, launch_empty),
          graph_step("overlapped_launch", true, launch_overlapping)};
}

}  // namespace tessera::ceilings
