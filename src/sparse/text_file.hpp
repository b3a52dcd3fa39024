#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::sparse {

/// A text file, read line by line and field by field. Messages name the file and the line.
class TextFile {
 public:
  /// Reads the whole file, so that sizes in it can be checked against its length.
  explicit TextFile(const std::string& path);

  /// Moves to the next line; returns false at the end of the file.
  bool next_line();
  /// The next field of the line; empty at its end. Fields end at blanks and at `separator`.
  std::string_view field(char separator = ' ');
  /// The next field on this line or a later one; empty at the end of the file.
  std::string_view field_on_any_line();
  const std::string_view& line() const { return line_; }  ///< the unread rest of the line
  /// Bytes after the current line.
  std::int64_t bytes_left() const { return static_cast<std::int64_t>(rest_.size()); }

  /// Parses a field as an integer in [low, high]; `what` names it in messages.
  std::int64_t integer(std::string_view text, const char* what, std::int64_t low,
                       std::int64_t high) const;
  /// Parses a field as a finite number.
  double real(std::string_view text, const char* what) const;
  /// Throws unless the line has no further field.
  void end_of_line();

  /// Throws Error(io): "FILE:LINE: message".
  [[noreturn]] void fail(const std::string& message) const;

 private:
  std::string path_, text_;
  std::string_view rest_, line_;
  std::int64_t number_ = 0;
};

}  // namespace tessera::sparse
