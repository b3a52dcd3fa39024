#pragma once

#include <span>
#include <string_view>

#include "src/kernels/family.hpp"

namespace tessera::planning {

/// All families, the more particular backend first; they plan, and have nothing to launch yet:
/// src/api adds what the build contains.
std::span<const KernelFamily> all_families();

/// The row of that name and its family; nulls where there is none.
struct FoundRow {
  const KernelFamily* family = nullptr;
  const KernelRow* row = nullptr;
  explicit operator bool() const { return row != nullptr; }
};
FoundRow find_row(std::span<const KernelFamily> families, std::string_view name);

}  // namespace tessera::planning
