#include "bench/ceilings/timing.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>
#include <vector>

#include "bench/ceilings/nvml.hpp"

namespace tessera::ceilings {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBurstSeconds = 0.012, kRestSeconds = 0.05;
constexpr double kChunkSeconds = 0.02;     // per chunk of sustained work; energy is read after each
constexpr double kLeadInSeconds = 1.0;     // until the card reaches its power limit; not counted
constexpr double kMinEnergySeconds = 0.3;  // NVML's energy counter is updated ten times per second
constexpr int kMaxRepeats = 1 << 30;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<double> median_if_any(const std::vector<double>& values) {
  return values.empty() ? std::nullopt : std::optional(median(values));
}

double seconds_of(const Work& work, cudaStream_t stream, int repeats) {
  Event begin, end;
  begin.record(stream);
  work.enqueue(stream, repeats);
  end.record(stream);
  end.wait();
  return end.seconds_since(begin);
}

/// The number of repetitions that take about `seconds`, estimated from a run that is long enough to
/// measure.
int repeats_for(const Work& work, cudaStream_t stream, double seconds) {
  int repeats = 1;
  seconds_of(work, stream, repeats);  // warm-up: loads the code, fills the caches
  double taken = seconds_of(work, stream, repeats);
  while (taken < 2e-3 && repeats < kMaxRepeats / 2) {
    repeats *= 2;
    taken = seconds_of(work, stream, repeats);
  }
  return static_cast<int>(std::clamp(seconds / taken * repeats, 1.0, double{kMaxRepeats}));
}

/// One reading of the energy counter.
struct Sample {
  double seconds, joules;
};

/// Mean watts between the first and the last update of the counter; none if the interval is too
/// short.
std::optional<double> power(const std::vector<Sample>& samples) {
  std::vector<Sample> moved;
  for (std::size_t i = 1; i < samples.size(); ++i)
    if (samples[i].joules != samples[i - 1].joules) moved.push_back(samples[i]);
  if (moved.empty() || moved.back().seconds - moved.front().seconds < kMinEnergySeconds)
    return std::nullopt;
  return (moved.back().joules - moved.front().joules) /
         (moved.back().seconds - moved.front().seconds);
}

/// Works for `seconds` and returns the amount per second. The queue never runs empty: a chunk is
/// awaited only after the next one has been enqueued.
double keep_busy(const Work& work, cudaStream_t stream, int chunk, double seconds,
                 const std::function<void(double)>& note) {
  Event begin, ends[2];
  const auto start = Clock::now();
  int chunks = 0;
  begin.record(stream);
  do {
    work.enqueue(stream, chunk);
    ends[chunks % 2].record(stream);
    if (chunks > 0) ends[(chunks - 1) % 2].wait();
    ++chunks;
    note(seconds_since(start));
  } while (seconds_since(start) < seconds);
  const Event& last = ends[(chunks - 1) % 2];
  last.wait();
  return work.amount * chunk * chunks / last.seconds_since(begin);
}

}  // namespace

double median_of_rounds(const std::function<double()>& measure) {
  std::vector<double> values;
  for (int round = 0; round < kRounds; ++round) {
    sleep(kRestSeconds);
    values.push_back(measure());
  }
  return median(values);
}

Rate burst(const Work& work) {
  const Nvml nvml;
  const Stream stream;
  const int repeats = repeats_for(work, stream, kBurstSeconds);
  std::vector<double> clocks;
  const double seconds = median_of_rounds([&] {
    Event begin, end;
    begin.record(stream);
    work.enqueue(stream, repeats);
    end.record(stream);
    sleep(kBurstSeconds / 3);  // sample the clock under load
    if (const auto mhz = nvml.clock_mhz()) clocks.push_back(*mhz);
    end.wait();
    return end.seconds_since(begin);
  });
  return {work.amount * repeats / seconds, median_if_any(clocks), std::nullopt};
}

Rate sustained(const Work& work, double seconds) {
  const Nvml nvml;
  const Stream stream;
  const int chunk = repeats_for(work, stream, kChunkSeconds);
  keep_busy(work, stream, chunk, kLeadInSeconds, [](double) {});
  std::vector<double> clocks;
  std::vector<Sample> energy;
  const double rate = keep_busy(work, stream, chunk, seconds, [&](double now) {
    if (const auto joules = nvml.joules()) energy.push_back({now, *joules});
    if (const auto mhz = nvml.clock_mhz()) clocks.push_back(*mhz);
  });
  return {rate, median_if_any(clocks), power(energy)};
}

}  // namespace tessera::ceilings
