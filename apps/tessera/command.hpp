#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

// What the subcommands share: how they are registered, what they return and how they complain.
namespace tessera::tool {

/// Exit codes, as every --help lists them.
enum ExitCode : int { kFine = 0, kCheckFailed = 1, kBadInput = 2, kUnsupported = 3 };

/// An option or a file that makes no sense; the message names it.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A subcommand: its parser and what it does once parsed.
struct Command {
  CLI::App* parser;
  std::function<int()> run;
};

Command add_info(CLI::App& app);
Command add_explain(CLI::App& app);
Command add_demo(CLI::App& app);
Command add_pattern(CLI::App& app);

/// Lists the subcommands that the Python package has, for --help.
void add_python_commands(CLI::App& app);
/// Where the arguments ask for one of those, becomes Python running it with all that follows, and
/// returns only where that cannot be: the exit code then. Nothing where they ask for none.
std::optional<int> run_python_command(int argc, char** argv);

/// Adds the examples and the exit codes at the end of a subcommand's help.
void set_footer(CLI::App& parser, const std::string& examples);
}  // namespace tessera::tool
