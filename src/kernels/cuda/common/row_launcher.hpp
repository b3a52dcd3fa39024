#pragma once

#include <span>

#include "src/kernels/family.hpp"

namespace tessera::cuda {

/// How a row's kernel is launched, for a problem that the row supports, on the current device.
struct RowLauncher {
  const planning::KernelRow* row;
  void (*launch)(const planning::Call&);
  const char* (*missing)();  // KernelFamily::missing; null where nothing can be missing
};

/// The rows that this build holds. Written by the build from the families' tables.
std::span<const RowLauncher> launchers();

}  // namespace tessera::cuda
