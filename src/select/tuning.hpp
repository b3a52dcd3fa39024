#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include <tessera/plan.hpp>

#include "src/select/tile_table.hpp"

// Rows that were measured to be the fastest on one device. docs/tuning.md has the file's grammar.
namespace tessera::planning {

/// The row of that name, of any backend; null where there is none.
const KernelRow* row_named(std::string_view name);

/// From a plan's signature to the row to take.
using PreferredRows = std::unordered_map<std::string, const KernelRow*>;

/// Reads a tuning file for the device of that name. Throws Error(invalid_argument) with the line
/// and what is wrong there: nothing of such a file is used.
PreferredRows parse_tuning(std::string_view text, const std::string& device);

/// The file name of a device: "NVIDIA-H200.tuning".
std::string tuning_file_name(const std::string& device);

/// What selection is handed: a file and what it says.
struct Tuning {
  TuningFile file;
  PreferredRows rows;
};

/// The cost model's choice (src/select/select.hpp), unless execution.kernel or the tuning names a row
/// that takes the problem. Throws Error where execution.kernel names none.
Plan choose_tuned(const AnyProblem& problem, const DeviceFacts& device, const Execution& execution,
                  const Tuning& tuning);
/// The same with words about all rows.
Explanation select_tuned(const AnyProblem& problem, const DeviceFacts& device,
                         const Execution& execution, const Tuning& tuning);

}  // namespace tessera::planning
