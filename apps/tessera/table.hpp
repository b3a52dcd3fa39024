#pragma once

#include <string>
#include <vector>

namespace tessera::tool {

/// A table of text with aligned columns. On a terminal of less than 60 columns that is too narrow
/// for it, one record after the other, as lines "column: value".
class Table {
 public:
  enum class Align { left, right };
  struct Column {
    std::string title;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;
  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<std::vector<std::string>>& rows() const { return rows_; }

 private:
  std::vector<int> widths() const;
  std::string records() const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// A number with that many digits after the point.
std::string fixed(double value, int digits);
/// A number with three significant digits and no exponent where it can be helped.
std::string brief(double value);
/// "512 B", "1.5 KiB", "64 MiB".
std::string bytes_text(double bytes);
/// "0.12 ms", "35 ms", "1.2 s".
std::string ms_text(double ms);
/// Characters as a terminal counts them (code points of UTF-8).
int display_width(const std::string& text);

}  // namespace tessera::tool
