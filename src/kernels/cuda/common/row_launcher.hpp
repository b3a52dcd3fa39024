#pragma once

#include <cstdint>
#include <span>

#include "src/kernels/family.hpp"

namespace tessera::cuda {

/// A kernel row and the function that launches it, on the current device, for a problem that the
/// row supports.
struct RowLauncher {
  const planning::KernelRow* row;
  void (*launch)(const planning::Call&);
  const char* (*missing)();                          // KernelFamily::missing, or null
  std::int64_t (*workspace)(const planning::Call&);  // KernelFamily::workspace, or null
};

/// The kernel rows in this build. The build generates the table from the families' rows.hpp.
std::span<const RowLauncher> launchers();

}  // namespace tessera::cuda
