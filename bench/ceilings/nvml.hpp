#pragma once

#include <optional>
#include <string>

namespace tessera::ceilings {

/// Clock and energy of the current card through NVML, which is opened at run time. If NVML or one
/// of its figures is missing, the functions return no value.
class Nvml {
 public:
  Nvml();
  std::optional<double> clock_mhz() const;  // of the SMs
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
