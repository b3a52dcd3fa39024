#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

// Declarations that the subcommands share: registration, exit codes and errors.
namespace tessera::tool {

/// Exit codes, as every --help lists them.
enum ExitCode : int { kFine = 0, kCheckFailed = 1, kBadInput = 2, kUnsupported = 3 };

/// An invalid option or file; the message names it.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A subcommand: its parser, and the function to call after parsing.
struct Command {
  CLI::App* parser;
  std::function<int()> run;
};

Command add_info(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_demo(CLI::App& app);
Command add_pattern(CLI::App& app);

/// Adds the subcommands of the Python package to --help.
void add_python_commands(CLI::App& app);
/// If the arguments name a subcommand of the Python package, replaces this process with Python
/// running it. Returns the exit code if Python cannot be started, and nothing if the arguments name
/// another subcommand.
std::optional<int> run_python_command(int argc, char** argv);

/// Adds the examples and the exit codes at the end of a subcommand's help.
void set_footer(CLI::App& parser, const std::string& examples);
}  // namespace tessera::tool
