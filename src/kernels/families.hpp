#pragma once

#include <span>
#include <string_view>

#include "src/kernels/family.hpp"

namespace tessera::planning {

/// All families, the more specific backend first. They can plan, but have no launch function:
/// src/api adds those of the backends in this build.
std::span<const KernelFamily> all_families();

/// The kernel row with a name, and its family; null if there is none.
struct FoundRow {
  const KernelFamily* family = nullptr;
  const KernelRow* row = nullptr;
  explicit operator bool() const { return row != nullptr; }
};
FoundRow find_row(std::span<const KernelFamily> families, std::string_view name);

}  // namespace tessera::planning
