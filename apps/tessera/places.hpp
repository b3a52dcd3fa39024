#pragma once

#include <filesystem>
#include <string>

// Where things are on this machine.
namespace tessera::tool {

/// This program's own file.
std::filesystem::path own_path();

/// `name` in `folder` or the closest one above it that has it. Empty where there is none.
std::filesystem::path find_above(const std::filesystem::path& folder,
                                 const std::filesystem::path& name);

/// The same above this program, else above the current folder.
std::filesystem::path find_above(const std::filesystem::path& name);

/// The source tree that `folder` lies in; empty where it lies in none.
std::filesystem::path source_tree_of(const std::filesystem::path& folder);

/// That of this program, else that of the current folder.
std::filesystem::path source_tree();

/// The Python interpreter to use: TESSERA_PYTHON; else the one in a .venv above this program or the
/// current folder; else python3 on PATH.
std::string find_python();

/// The name of the CPU from /proc/cpuinfo; empty if it has none.
std::string cpu_model();

}  // namespace tessera::tool
