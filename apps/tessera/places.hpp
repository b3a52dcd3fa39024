#pragma once

#include <filesystem>
#include <string>

// Where things are on this machine.
namespace tessera::tool {

/// The source tree that this program lies in, else the one that the current folder lies in; empty
/// where neither lies in one.
std::filesystem::path source_tree();

/// The Python that TESSERA_PYTHON names; else that of the .venv of the tree that this program or
/// the current folder lies in; else the first on PATH.
std::string find_python();

/// The CPU's name as the system has it; empty where it has none.
std::string cpu_model();

}  // namespace tessera::tool
