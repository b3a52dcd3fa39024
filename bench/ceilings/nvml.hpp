#pragma once

#include <optional>
#include <string>

namespace tessera::ceilings {

/// Clock and energy of the current card through NVML, opened at run time. Where NVML or one of its
/// figures is missing, there is no answer and nothing else changes.
class Nvml {
 public:
  Nvml();
  std::optional<double> clock_mhz() const;  // of the multiprocessors
  std::optional<double> joules() const;     // since the driver was loaded

 private:
  using Device = struct nvmlDevice_st*;
  using ReadClock = int (*)(Device, int, unsigned*);
  using ReadEnergy = int (*)(Device, unsigned long long*);

  Device device_ = nullptr;
  ReadClock read_clock_ = nullptr;
  ReadEnergy read_energy_ = nullptr;
};

}  // namespace tessera::ceilings
