#include "bench/ceilings/nvml.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

namespace tessera::ceilings {
namespace {

constexpr int kSuccess = 0, kClockOfMultiprocessors = 1;

template <class Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

Nvml::Nvml() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);  // never closed
  int current = 0;
  char bus[32] = {};
  if (!library || cudaGetDevice(&current) != cudaSuccess ||
      cudaDeviceGetPCIBusId(bus, sizeof(bus), current) != cudaSuccess)
    return;
  const auto init = find<int (*)()>(library, "nvmlInit_v2");
  const auto by_bus =
      find<int (*)(const char*, Device*)>(library, "nvmlDeviceGetHandleByPciBusId_v2");
  if (!init || !by_bus || init() != kSuccess || by_bus(bus, &device_) != kSuccess) {
    device_ = nullptr;
    return;
  }
  read_clock_ = find<ReadClock>(library, "nvmlDeviceGetClockInfo");
  read_energy_ = find<ReadEnergy>(library, "nvmlDeviceGetTotalEnergyConsumption");
}

std::optional<double> Nvml::clock_mhz() const {
  unsigned mhz = 0;
  if (!device_ || !read_clock_ || read_clock_(device_, kClockOfMultiprocessors, &mhz) != kSuccess)
    return std::nullopt;
  return mhz;
}

std::optional<double> Nvml::joules() const {
  unsigned long long millijoules = 0;
  if (!device_ || !read_energy_ || read_energy_(device_, &millijoules) != kSuccess)
    return std::nullopt;
  return static_cast<double>(millijoules) * 1e-3;
}

}  // namespace tessera::ceilings
