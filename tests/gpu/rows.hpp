#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/plan/select.hpp"
#include "src/plan/tile_table.hpp"
#include "src/plan/workspace.hpp"
#include "tests/gpu/twin.hpp"

// Problems by a row of the test's choice, whatever the cost model thinks.
namespace tessera::gpu_test {

/// The rows of one family.
inline std::vector<int> rows_of(const std::string& family) {
  std::vector<int> rows;
  const auto table = planning::kernel_table(Backend::sm90);
  for (std::size_t i = 0; i < table.size(); ++i)
    if (table[i].family() == family) rows.push_back(static_cast<int>(i));
  return rows;
}

inline std::string name_of(int row) {
  return planning::kernel_table(Backend::sm90)[static_cast<std::size_t>(row)].name;
}

/// Device memory for as long as it lives.
class Room {
 public:
  explicit Room(std::int64_t bytes) : bytes_(bytes) {
    if (bytes > 0) check(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), "cudaMalloc");
  }
  ~Room() { cudaFree(data_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  Buffer buffer() const { return bytes_ > 0 ? Buffer{data_, bytes_} : Buffer{}; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_;
};

/// A plan for one row.
template <class Problem>
Plan plan_by(int row, const Problem& problem) {
  Plan made = plan(problem);
  const planning::KernelRow& chosen =
      planning::kernel_table(Backend::sm90)[static_cast<std::size_t>(row)];
  const planning::BufferSizes sizes =
      planning::buffer_sizes(chosen, made.op, planning::shape_of(AnyProblem(problem)), 0);
  made.kernel = row;
  made.kernel_name = chosen.name;
  made.workspace_bytes = sizes.workspace;
  made.schedule_bytes = sizes.schedule;
  return made;
}

/// With buffers of its own.
template <class Problem>
void run_by(int row, const Problem& problem) {
  const Plan made = plan_by(row, problem);
  const Room workspace(made.workspace_bytes), schedule(made.schedule_bytes);
  Execution execution;
  execution.workspace = workspace.buffer();
  execution.schedule = schedule.buffer();
  if (made.schedule_bytes > 0) prepare(made, problem, execution);
  run(made, problem, execution);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// What a plan does with one problem, captured once and launched as often as asked.
class Captured {
 public:
  template <class Problem>
  Captured(const Plan& made, const Problem& problem)
      : workspace_(made.workspace_bytes), schedule_(made.schedule_bytes) {
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    Execution execution;
    execution.workspace = workspace_.buffer();
    execution.schedule = schedule_.buffer();
    execution.stream = stream_;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "capture");
    if (made.schedule_bytes > 0) prepare(made, problem, execution);
    run(made, problem, execution);
    check(cudaStreamEndCapture(stream_, &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Captured() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void launch() const {
    check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  Room workspace_, schedule_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tessera::gpu_test
