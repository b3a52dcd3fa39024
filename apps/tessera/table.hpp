#pragma once

#include <string>
#include <vector>

namespace tessera::tool {

/// A text table with aligned columns. If it does not fit a terminal of less than 60 columns, each
/// row is printed as lines "column: value" instead.
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

/// A number with `digits` decimals.
std::string fixed(double value, int digits);
/// A number with about three significant digits, without an exponent from 0.001 up to 1e9.
std::string brief(double value);
/// "512 B", "1.5 KiB", "64 MiB".
std::string bytes_text(double bytes);
/// "0.12 ms", "35 ms", "1.2 s".
std::string ms_text(double ms);
/// The width of UTF-8 text in a terminal: its number of code points.
int display_width(const std::string& text);

}  // namespace tessera::tool
