#include "apps/tessera/timing.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tessera::tool {

namespace {

// OpenMP's threads spin for a few milliseconds after their work, on cores that the next side needs.
// During the rest they go to sleep.
constexpr auto kRest = std::chrono::milliseconds(40);

Timing summarize(std::vector<double> times) {
  if (times.empty()) return {};
  std::sort(times.begin(), times.end());
  auto quantile = [&](double q) {
    const double at = q * static_cast<double>(times.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    const auto high = std::min(low + 1, times.size() - 1);
    return times[low] + (at - static_cast<double>(low)) * (times[high] - times[low]);
  };
  const double median = quantile(0.5);
  const double spread = median > 0 ? (quantile(0.75) - quantile(0.25)) / median : 0;
  return {median, spread, static_cast<int>(times.size())};
}

}  // namespace

double time_ms(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

std::vector<Timing> interleave(const std::vector<std::function<double()>>& sides,
                               const TimingOptions& options) {
  std::vector<std::vector<double>> times(sides.size());
  const auto start = std::chrono::steady_clock::now();
  auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  for (int round = 0; round <= options.max_rounds; ++round) {
    const bool warm_up = round == 0;
    if (round > options.min_rounds && elapsed() > options.seconds) break;
    for (std::size_t s = 0; s < sides.size(); ++s) {
      std::this_thread::sleep_for(kRest);
      const double ms = sides[s]();
      if (!warm_up) times[s].push_back(ms);
    }
  }
  std::vector<Timing> result;
  for (auto& side : times) result.push_back(summarize(std::move(side)));
  return result;
}

}  // namespace tessera::tool
