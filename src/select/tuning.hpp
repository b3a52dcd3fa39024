#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include <tessera/plan.hpp>

#include "src/kernels/families.hpp"

// Tuning files: the kernel rows that were measured to be the fastest on one device. The grammar is
// in docs/tuning.md.
namespace tessera::planning {

/// Maps a plan's signature to its preferred row.
using PreferredRows = std::unordered_map<std::string, FoundRow>;

/// Parses a tuning file for the device with that name. Throws Error(invalid_argument) with the line
/// number and the problem; then nothing of the file is used.
PreferredRows parse_tuning(std::span<const KernelFamily> families, std::string_view text,
                           const std::string& device);

/// The name of a device's tuning file: "NVIDIA-H200.tuning".
std::string tuning_file_name(const std::string& device);

/// A tuning file and its contents, as selection uses them.
struct Tuning {
  TuningFile file;
  PreferredRows rows;
};

}  // namespace tessera::planning
