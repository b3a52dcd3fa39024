#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <optional>

#include "src/kernels/cuda/common/check.hpp"

// Timing of the ceilings, like python/tessera/bench/timing.py: in bursts with rests between them,
// and in seconds without rest.
namespace tessera::ceilings {

using cuda::check;

/// GPU memory for the duration of a step.
class Memory {
 public:
  explicit Memory(std::size_t bytes) { check(cudaMalloc(&data_, bytes), "cudaMalloc"); }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  void wait() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }
  double seconds_since(const Event& earlier) const {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, earlier.event_, event_), "cudaEventElapsedTime");
    return ms * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

inline constexpr int kRounds = 9;  // rounds per burst; the median is the result

/// The median of kRounds measurements, each after a rest.
double median_of_rounds(const std::function<double()>& measure);

/// Repeatable work: `enqueue` puts `repeats` repetitions into the stream, each of which performs
/// `amount` operations or moves `amount` bytes.
struct Work {
  double amount;
  std::function<void(cudaStream_t, int repeats)> enqueue;
};

/// An amount per second, with the clock and power that NVML reported.
struct Rate {
  double per_second = 0;
  std::optional<double> clock_mhz, watts;
};

/// The rate in 12 ms of work followed by a rest, nine times: the card at its full clock.
Rate burst(const Work& work);

/// The rate over seconds of work without rest: the card at its power limit.
Rate sustained(const Work& work, double seconds);

}  // namespace tessera::ceilings
