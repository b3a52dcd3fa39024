#include <algorithm>

#include <tessera/error.hpp>

#include "src/core/check.hpp"
#include "src/select/tuning.hpp"

namespace tessera {

std::string to_string(const TuningFile& file) {
  if (file.path.empty()) return "none";
  if (!file.ignored.empty()) return file.path + ": ignored: " + file.ignored;
  if (!file.found) return file.path + ": not found";
  return file.path + ": in use (" + std::to_string(file.problems) +
         (file.problems == 1 ? " problem)" : " problems)");
}

void check_tuning(const std::string& text, const std::string& device) {
  planning::parse_tuning(planning::all_families(), text, device);
}

namespace planning {
namespace {

using core::words;

constexpr std::string_view kHeader = "tessera-tuning ";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kDevice = "device ";
constexpr std::size_t kLongestLine = 1024;
constexpr std::size_t kMaxProblems = 65536;

constexpr Op kOps[] = {
    Op::matmul, Op::sddmm, Op::spgemm, Op::attention, Op::attention_backward, Op::merge_states};

/// Text of the file in quotes for a message, shortened.
std::string quoted(std::string_view text) {
  constexpr std::size_t kMax = 60;
  std::string shown = "'" + std::string(text.substr(0, kMax));
  return shown + (text.size() > kMax ? "...'" : "'");
}

/// Reads a text line by line and counts lines for messages.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}

  bool next() {
    if (rest_.empty()) return false;
    ++number_;
    const std::size_t end = rest_.find('\n');
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    if (line_.size() > kLongestLine) {
      refuse(words("expected at most ", kLongestLine, " characters, got ", line_.size()));
    }
    const bool printable = std::all_of(line_.begin(), line_.end(),
                                       [](char c) { return c == '\t' || (c >= ' ' && c <= '~'); });
    if (!printable) refuse("expected printable ASCII, got other bytes");
    return true;
  }
  std::string_view line() const { return line_; }
  int number() const { return number_; }
  [[noreturn]] void refuse(const std::string& message) const {
    throw Error(ErrorCode::invalid_argument, words("line ", std::max(number_, 1), ": ", message));
  }

 private:
  std::string_view rest_, line_;
  int number_ = 0;
};

/// Reads the next line, which must start with `word`, and returns the rest of it.
std::string_view after(Lines& lines, std::string_view word) {
  if (!lines.next()) lines.refuse(words("expected '", word, "...', got the end of the file"));
  if (!lines.line().starts_with(word)) {
    lines.refuse(words("expected '", word, "...', got ", quoted(lines.line())));
  }
  return lines.line().substr(word.size());
}

void check_fits(const Lines& lines, const FoundRow& found, std::string_view signature) {
  const std::string_view word = signature.substr(0, signature.find(' '));
  for (const Op op : kOps) {
    if (word != to_string(op)) continue;
    if (found.family->op == op) return;
    lines.refuse(words(found.row->name, " is not a kernel for ", word));
  }
  lines.refuse(words("expected a problem's signature, got ", quoted(signature)));
}

/// Reads a line KERNEL tab SIGNATURE. Text after another tab is a comment.
void read_problem(std::span<const KernelFamily> families, const Lines& lines, PreferredRows& rows,
                  std::unordered_map<std::string, int>& seen) {
  const std::string_view line = lines.line();
  const std::size_t tab = line.find('\t');
  if (tab == std::string_view::npos) {
    lines.refuse(words("expected a kernel, a tab and a signature, got ", quoted(line)));
  }
  const FoundRow found = find_row(families, line.substr(0, tab));
  if (!found) lines.refuse(words("no kernel is called ", quoted(line.substr(0, tab))));
  std::string_view signature = line.substr(tab + 1);
  signature = signature.substr(0, signature.find('\t'));
  check_fits(lines, found, signature);
  const auto [former, is_new] = seen.emplace(signature, lines.number());
  if (!is_new) {
    lines.refuse(words("repeats the problem of line ", former->second, ": ", quoted(signature)));
  }
  if (rows.size() == kMaxProblems) lines.refuse(words("more than ", kMaxProblems, " problems"));
  rows.emplace(signature, found);
}

}  // namespace

PreferredRows parse_tuning(std::span<const KernelFamily> families, std::string_view text,
                           const std::string& device) {
  Lines lines(text);
  const std::string_view version = after(lines, kHeader);
  if (version != kVersion) {
    lines.refuse(words("expected version ", kVersion, ", got ", quoted(version)));
  }
  const std::string_view made_for = after(lines, kDevice);
  if (made_for != device) {
    lines.refuse(words("measured on ", quoted(made_for), ", the device is '", device, "'"));
  }
  PreferredRows rows;
  std::unordered_map<std::string, int> seen;
  while (lines.next()) {
    if (!lines.line().empty() && lines.line().front() != '#')
      read_problem(families, lines, rows, seen);
  }
  return rows;
}

std::string tuning_file_name(const std::string& device) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  constexpr std::size_t kMax = 100;
  std::string name;
  for (const char c : device.substr(0, kMax)) {
    if (is_plain(c)) {
      name += c;
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (name.ends_with('-')) name.pop_back();
  return (name.empty() ? "device" : name) + ".tuning";
}

}  // namespace planning
}  // namespace tessera
