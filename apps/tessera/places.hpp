#pragma once

#include <filesystem>
#include <string>

// Where things are on this machine.
namespace tessera::tool {

/// This program's own file.
std::filesystem::path own_path();

/// The source tree that this program lies in, else the one that the current folder lies in; empty
/// where neither lies in one.
std::filesystem::path source_tree();

/// The Python interpreter to use: TESSERA_PYTHON; else the one in a .venv above this program or the
/// current folder; else python3 on PATH.
std::string find_python();

/// The name of the CPU from /proc/cpuinfo; empty if it has none.
std::string cpu_model();

}  // namespace tessera::tool
