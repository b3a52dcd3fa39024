#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "apps/tessera/command.hpp"
#include "apps/tessera/places.hpp"

// The subcommands of the Python package. This process is replaced by Python, so that exit codes,
// signals, help and the terminal are Python's own.
namespace tessera::tool {

namespace {

struct PythonCommand {
  const char* name;
  const char* module;
  const char* about;
};

constexpr std::array kCommands{
    PythonCommand{"bench", "tessera.bench", "Measure operations and other libraries"},
    PythonCommand{"verify", "tessera.verify", "Random problems against double precision"},
    PythonCommand{"report", "tessera.report", "Result files as one page of HTML"},
};

// Runs a module like `python -m`, if the package is installed. A folder that is called tessera does
// not count as the package.
constexpr const char* kRunModule = R"(
import importlib.util, runpy, sys
found = importlib.util.find_spec("tessera")
if found is None or found.origin is None:
    sys.stderr.write("tessera: " + sys.argv.pop(1) + ": " + sys.executable
                     + " has no package tessera; in the source tree, make python installs it; for "
                       "another Python, use pip install . and set TESSERA_PYTHON\n")
    sys.exit(3)
name = sys.argv.pop(1)
try:
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
except KeyboardInterrupt:  # while the package is loading
    sys.stderr.write("tessera: " + name + ": stopped\n")
    sys.exit(130)
)";

}  // namespace

void add_python_commands(CLI::App& app) {
  for (const PythonCommand& command : kCommands) app.add_subcommand(command.name, command.about);
}

std::optional<int> run_python_command(int argc, char** argv) {
  for (const PythonCommand& command : kCommands) {
    if (argc < 2 || std::string_view(argv[1]) != command.name) continue;
    std::string python = find_python(), program = kRunModule, name = command.name;
    std::string option = "-c", module = command.module;
    std::vector<char*> words{python.data(), option.data(), program.data(), name.data(),
                             module.data()};
    words.insert(words.end(), argv + 2, argv + argc);
    words.push_back(nullptr);
    std::cout.flush();
    ::execvp(python.c_str(), words.data());
    std::cerr << "tessera: " << command.name << ": cannot start " << python << ": "
              << std::strerror(errno) << "; TESSERA_PYTHON names another\n";
    return kUnsupported;
  }
  return std::nullopt;
}

}  // namespace tessera::tool
