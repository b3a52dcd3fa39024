#include "apps/tessera/options.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "apps/tessera/command.hpp"

namespace tessera::tool {

namespace {

constexpr auto kMaxInteger = std::numeric_limits<std::int64_t>::max();

std::string range_text(std::int64_t low, std::int64_t high) {
  if (high < kMaxInteger)
    return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
  return low == 1 ? "a positive integer" : "an integer of " + std::to_string(low) + " or more";
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", value);
  return text.data();
}

// The number of insertions, deletions, replacements and swaps of adjacent letters that turn one
// word into the other.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        cost[i][j] = i + j;
        continue;
      }
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1,
                             cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

std::vector<std::string> option_names(const CLI::App& parser) {
  std::vector<std::string> names;
  for (const CLI::Option* option : parser.get_options())
    if (!option->get_positional() && !option->get_group().empty())
      names.push_back(option->get_name());
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

}  // namespace

CLI::Validator integer_between(std::int64_t low, std::int64_t high) {
  auto check = [=](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, value);
    const bool whole = stop == end && !text.empty();
    if (whole && error == std::errc{} && value >= low && value <= high) return "";
    const bool too_large = whole && error == std::errc::result_out_of_range && text[0] != '-';
    return "expected " + range_text(low, high) +
           (too_large && high == kMaxInteger ? " below 2^63" : "") + ", got " + text;
  };
  return CLI::Validator(check, "");
}

CLI::Validator positive_integer() { return integer_between(1, kMaxInteger); }

CLI::Validator non_negative_integer() { return integer_between(0, kMaxInteger); }

CLI::Validator number_between(double low, double high) {
  auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    const bool number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
    if (number && value >= low && value <= high) return "";
    const std::string range = std::isfinite(high)
                                  ? " from " + number_text(low) + " to " + number_text(high)
                                  : " of " + number_text(low) + " or more";
    return "expected a number" + range + ", got " + text;
  };
  return CLI::Validator(check, "");
}

CLI::Validator non_negative_number() {
  return number_between(0, std::numeric_limits<double>::infinity());
}

CLI::Validator one_of(std::vector<std::string> words) {
  auto check = [words = std::move(words)](const std::string& text) -> std::string {
    if (std::find(words.begin(), words.end(), text) != words.end()) return "";
    return "expected one of " + CLI::detail::join(words, ", ") + ", got " + text +
           did_you_mean(text, words);
  };
  return CLI::Validator(check, "");
}

std::string did_you_mean(const std::string& written, const std::vector<std::string>& known) {
  constexpr std::size_t kLongest = 64;
  if (written.empty() || written.size() > kLongest) return "";
  const std::string* nearest = nullptr;
  // At most two edits, and fewer than half of the letters.
  std::size_t best = std::min<std::size_t>(2, (written.size() - 1) / 2) + 1;
  for (const std::string& word : known) {
    const std::size_t distance = edit_distance(written, word);
    if (distance >= best) continue;
    best = distance;
    nearest = &word;
  }
  return nearest ? "; did you mean " + *nearest + "?" : "";
}

std::string explain_leftovers(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining(true);
  const std::string& first = left.front();
  const auto parsed = app.get_subcommands();
  const CLI::App& parser = parsed.empty() ? app : *parsed.front();
  const std::string command = parsed.empty() ? "tessera" : "tessera " + parser.get_name();
  if (first.size() > 1 && first[0] == '-') {
    const std::string name = first.substr(0, first.find('='));
    const std::string guess = did_you_mean(name, option_names(parser));
    return (parsed.empty() ? "" : parser.get_name() + ": ") + "unknown option " + name +
           (guess.empty() ? "; " + command + " --help lists the options" : guess);
  }
  if (!parsed.empty()) return parser.get_name() + ": unexpected argument " + first;
  const std::string guess = did_you_mean(first, command_names(app));
  return "unknown command " + first +
         (guess.empty() ? "; tessera --help lists the commands" : guess);
}

CLI::Option* OptionScopes::only(CLI::Option* option, std::vector<std::string> subjects) {
  scopes_.emplace_back(option, std::move(subjects));
  return option;
}

void OptionScopes::check(const std::string& command, const std::string& subject) const {
  for (const auto& [option, subjects] : scopes_) {
    if (option->count() == 0) continue;
    if (std::find(subjects.begin(), subjects.end(), subject) != subjects.end()) continue;
    throw UsageError(command + ": " + option->get_name() + " applies to " +
                     CLI::detail::join(subjects, ", ") + ", not to " + subject);
  }
}

}  // namespace tessera::tool
