#pragma once

#include <cuda_runtime_api.h>

#include "tests/gpu/twin.hpp"

namespace tessera::gpu_test {

/// A stream and the graph that was captured on it.
class Graph {
 public:
  template <class Record>
  explicit Graph(const Record& record) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin capture");
    record(static_cast<void*>(stream_));
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "end capture");
    check(cudaGraphInstantiate(&executable_, graph, 0), "cudaGraphInstantiate");
    check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaStreamDestroy(stream_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void start() const { check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch"); }
  void replay() const {
    start();
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tessera::gpu_test
