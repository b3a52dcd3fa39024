#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

// Checks of what was written on the command line. Each complaint says what is expected and what
// came.
namespace tessera::tool {

CLI::Validator positive_integer();
CLI::Validator non_negative_integer();
CLI::Validator integer_between(std::int64_t low, std::int64_t high);
/// A finite number in [low, high]; `high` may be infinite.
CLI::Validator number_between(double low, double high);
CLI::Validator non_negative_number();
CLI::Validator one_of(std::vector<std::string> words);

/// "; did you mean WORD?" if one of `known` is nearly `written`, else nothing.
std::string did_you_mean(const std::string& written, const std::vector<std::string>& known);

/// What to say of the arguments that a parser left over: an unknown command or option.
std::string explain_leftovers(const CLI::App& app);

/// Options that only some subjects of a command use: operations of `explain`, generators of
/// `pattern`.
class OptionScopes {
 public:
  CLI::Option* only(CLI::Option* option, std::vector<std::string> subjects);
  /// Throws UsageError if an option was given that `subject` does not use.
  void check(const std::string& command, const std::string& subject) const;

 private:
  std::vector<std::pair<CLI::Option*, std::vector<std::string>>> scopes_;
};

}  // namespace tessera::tool
