#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "src/kernels/cpu/backend.hpp"
#include "src/kernels/cpu/simd.hpp"

namespace tessera::cpu {
namespace {

double clock_ghz() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("cpu MHz", 0) == 0)
      return std::strtod(line.c_str() + line.find(':') + 1, nullptr) / 1000.0;
  return 2.5;  // default if the system does not report it
}

DeviceFacts detect() {
  DeviceFacts facts;
  facts.kind = DeviceKind::cpu;
  // One thread per core, unless OMP_NUM_THREADS is set: launchers of several processes set it.
  facts.units = std::max(1, omp_get_max_threads());
  facts.simd = simd().name;
  facts.name = "CPU: " + facts.simd + ", " + std::to_string(facts.units) +
               (facts.units == 1 ? " thread" : " threads");
  facts.clock_ghz = clock_ghz();
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  facts.l2_bytes = std::max<std::int64_t>(cache, 0);
  facts.memory_bytes = static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  // Nominal: one memory channel per two cores; good enough for ranking.
  facts.memory_tbs = 0.02 * std::max(1.0, facts.units / 2.0);
  return facts;
}

}  // namespace

DeviceFacts device_facts() {
  static const DeviceFacts facts = detect();
  return facts;
}

}  // namespace tessera::cpu
