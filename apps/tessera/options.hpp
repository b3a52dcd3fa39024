#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Checks of command line options. Messages have the form "expected X, got Y".
namespace tessera::tool {

CLI::Validator positive_integer();
CLI::Validator non_negative_integer();
CLI::Validator integer_between(std::int64_t low, std::int64_t high);
/// A finite number in [low, high]; `high` may be infinite.
CLI::Validator number_between(double low, double high);
CLI::Validator non_negative_number();
CLI::Validator one_of(std::vector<std::string> words);

/// "; did you mean WORD?" if a word of `known` is similar to `written`, else an empty string.
std::string did_you_mean(const std::string& written, const std::vector<std::string>& known);

/// The message about arguments that the parser did not use: an unknown command or option.
std::string explain_leftovers(const CLI::App& app);

/// Records which options apply to which subjects of a command: operations of `explain`, generators
/// of `pattern`.
class OptionScopes {
 public:
  /// Restricts an option to some subjects.
  CLI::Option* only(CLI::Option* option, std::vector<std::string> subjects);
  /// Throws UsageError if an option was given that does not apply to `subject`.
  void check(const std::string& command, const std::string& subject) const;

 private:
  std::vector<std::pair<CLI::Option*, std::vector<std::string>>> scopes_;
};

}  // namespace tessera::tool
