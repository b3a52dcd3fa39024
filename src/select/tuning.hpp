#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include <tessera/plan.hpp>

#include "src/kernels/families.hpp"

// Rows that were measured to be the fastest on one device. docs/tuning.md has the file's grammar.
namespace tessera::planning {

/// From a plan's signature to the row to take.
using PreferredRows = std::unordered_map<std::string, FoundRow>;

/// Reads a tuning file for the device of that name. Throws Error(invalid_argument) with the line
/// and what is wrong there: nothing of such a file is used.
PreferredRows parse_tuning(std::span<const KernelFamily> families, std::string_view text,
                           const std::string& device);

/// The file name of a device: "NVIDIA-H200.tuning".
std::string tuning_file_name(const std::string& device);

/// What selection is handed: a file and what it says.
struct Tuning {
  TuningFile file;
  PreferredRows rows;
};

}  // namespace tessera::planning
