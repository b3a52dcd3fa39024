#pragma once

#include <filesystem>
#include <string>

// Locations of files on this machine, and the name of its CPU.
namespace tessera::tool {

/// This program's own file.
std::filesystem::path own_path();

/// The source tree that contains this program, else the one that contains the current folder, else
/// empty.
std::filesystem::path source_tree();

/// The Python interpreter to use: TESSERA_PYTHON; else the one in a .venv above this program or the
/// current folder; else python3 on PATH.
std::string find_python();

/// The name of the CPU from /proc/cpuinfo; empty if it has none.
std::string cpu_model();

}  // namespace tessera::tool
