#include "src/sparse/text_file.hpp"

#include <charconv>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>

#include <tessera/error.hpp>

namespace tessera::sparse {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

// Text of the file in quotes for a message: shortened, without control characters.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 40;
  std::string shown = "\"";
  for (const char c : text.substr(0, kShown)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown + (text.size() > kShown ? "...\"" : "\"");
}

}  // namespace

TextFile::TextFile(const std::string& path) : path_(path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::io, path + ": " + why);
  };
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) refuse("expected a readable file, got none");
  const auto size = std::filesystem::file_size(path, code);
  std::ifstream file(path, std::ios::binary);
  if (code || !file) refuse("could not be opened");
  try {
    text_.resize(size);
  } catch (const std::exception&) {  // bad_alloc or length_error
    throw Error(ErrorCode::out_of_memory,
                path + ": could not allocate its " + std::to_string(size) + " bytes");
  }
  file.read(text_.data(), static_cast<std::streamsize>(size));
  if (file.gcount() != static_cast<std::streamsize>(size)) refuse("could not be read to its end");
  rest_ = text_;
}

bool TextFile::next_line() {
  if (rest_.empty()) return false;
  const auto end = rest_.find('\n');
  line_ = rest_.substr(0, end);
  rest_.remove_prefix(end == std::string_view::npos ? rest_.size() : end + 1);
  ++number_;
  return true;
}

std::string_view TextFile::field(char separator) {
  while (!line_.empty() && is_blank(line_.front())) line_.remove_prefix(1);
  std::size_t end = 0;
  while (end < line_.size() && !is_blank(line_[end]) && line_[end] != separator) ++end;
  const std::string_view found = line_.substr(0, end);
  line_.remove_prefix(end);
  // A separator ends the field before it, so that there is an empty field between two separators.
  while (!line_.empty() && is_blank(line_.front())) line_.remove_prefix(1);
  if (!line_.empty() && line_.front() == separator) line_.remove_prefix(1);
  return found;
}

std::string_view TextFile::field_on_any_line() {
  for (;;) {
    if (const std::string_view found = field(); !found.empty()) return found;
    if (!next_line()) return {};
  }
}

std::int64_t TextFile::integer(std::string_view text, const char* what, std::int64_t low,
                               std::int64_t high) const {
  if (text.empty()) fail(std::string("expected ") + what + ", got the end of the line");
  std::int64_t value = 0;
  const char* begin = text.data() + (text.front() == '+' && text.size() > 1 && text[1] != '-');
  const auto [end, code] = std::from_chars(begin, text.data() + text.size(), value);
  if (code == std::errc::invalid_argument || end != text.data() + text.size()) {
    fail(std::string("expected a whole number as ") + what + ", got " + quoted(text));
  }
  if (code != std::errc() || value < low || value > high) {
    fail(std::string("expected ") + what + " from " + std::to_string(low) + " to " +
         std::to_string(high) + ", got " + quoted(text));
  }
  return value;
}

double TextFile::real(std::string_view text, const char* what) const {
  if (text.empty()) fail(std::string("expected ") + what + ", got the end of the line");
  double value = 0;
  const char* begin = text.data() + (text.front() == '+' && text.size() > 1 && text[1] != '-');
  const auto [end, code] = std::from_chars(begin, text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    fail(std::string("expected a finite number as ") + what + ", got " + quoted(text));
  }
  return value;
}

void TextFile::end_of_line() {
  if (const std::string_view extra = field(); !extra.empty()) {
    fail("expected the end of the line, got " + quoted(extra));
  }
}

void TextFile::fail(const std::string& message) const {
  throw Error(ErrorCode::io, path_ + ":" + std::to_string(number_) + ": " + message);
}

}  // namespace tessera::sparse
