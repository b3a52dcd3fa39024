#include <fstream>
#include <iostream>
#include <stdexcept>
#include <tessera/tessera.hpp>

#include "apps/tessera/bench.hpp"
#include "apps/tessera/command.hpp"
#include "apps/tessera/fill.hpp"

namespace tessera::tool {

namespace {

// A line of /proc/self/status such as "VmHWM:  1234 kB", in bytes.
std::int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == name + ":" && status >> kilobytes) return kilobytes * 1024;
  }
  throw std::runtime_error("/proc/self/status has no " + name);
}

}  // namespace

int run_memory_probe(std::int64_t length, int threads) {
  const std::vector<std::int64_t> shape{1, length, 8, 64};
  const HostTensor q = normal_tensor(DType::f32, shape, 1), k = normal_tensor(DType::f32, shape, 2),
                   v = normal_tensor(DType::f32, shape, 3),
                   out = normal_tensor(DType::f32, shape, 4);
  const AttentionProblem problem{.q = q, .k = k, .v = v, .out = out};
  Execution execution;
  execution.threads = threads;
  const Plan plan = tessera::plan(problem, execution);
  const std::int64_t before = status_bytes("VmRSS");
  const double ms = time_ms([&] { attention(problem, execution); });
  const std::int64_t extra = status_bytes("VmHWM") - before;
  const Json answer{{"ms", ms},
                    {"extra_bytes", extra},
                    {"workspace_bytes", plan.workspace_bytes + plan.schedule_bytes},
                    {"row", plan.kernel_name}};
  std::cout << answer.dump() << std::endl;
  return kFine;
}

}  // namespace tessera::tool
