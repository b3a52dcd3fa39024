#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tessera/plan.hpp>
#include <vector>

#include "apps/tessera/timing.hpp"

namespace tessera::tool {

using Json = nlohmann::ordered_json;

/// What a case is compared with: another program, or another run of ours.
struct Peer {
  std::string name{}, version{};
  Timing time{};
  double flops = 0;           ///< that it computes in that time
  std::string unavailable{};  ///< the reason where it could not be measured
};

/// One measured case and what it has to reach.
struct CaseResult {
  std::string op;
  Json params;
  double useful_flops = 0, bytes = 0;
  Timing ours;
  std::string row;              ///< the kernel that ran
  double predicted_ms = 0;      ///< what the cost model said
  std::vector<Peer> peers;      ///< the first one available gives the ratio
  std::string ratio_of;         ///< what the ratio is, in words
  std::optional<double> ratio;  ///< nothing where no peer is available
  double must = 0;
  bool at_least = true;  ///< else: at most

  bool missed() const { return ratio && (at_least ? *ratio < must : *ratio > must); }
};

/// What cases run with.
struct BenchSettings {
  Execution execution;
  int threads = 1;
  double seconds = 6;  ///< a case
  std::string python;
  std::function<void(const std::string&)> say;  ///< what is measured now
};

struct BenchCase {
  std::string name;
  std::string what;
  std::function<CaseResult(const BenchSettings&)> measure;
};

std::vector<BenchCase> product_cases();
std::vector<BenchCase> attention_cases();

/// What the hidden `bench --memory-probe LENGTH` does in a process of its own: runs attention once
/// and prints by how many bytes the peak of resident memory rose.
int run_memory_probe(std::int64_t length, int threads);

/// Sets row, predicted_ms and bytes from what `explain` says of the problem that is timed.
void set_plan(CaseResult& result, const AnyProblem& problem, const Execution& execution);

/// FLOPs per second, in units of 10^9.
inline double gflops(double flops, const Timing& time) { return flops / (time.ms * 1e6); }

}  // namespace tessera::tool
