#include "apps/tessera/table.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "apps/tessera/output.hpp"

namespace tessera::tool {

int display_width(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::vector<int> Table::widths() const {
  std::vector<int> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    int width = display_width(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, display_width(row.at(c)));
    widths.push_back(width);
  }
  return widths;
}

std::string Table::records() const {
  std::string out;
  for (const auto& row : rows_) {
    if (!out.empty()) out += '\n';
    for (std::size_t c = 0; c < columns_.size(); ++c)
      out += columns_[c].title + ": " + row[c] + '\n';
  }
  return out;
}

std::string Table::text() const {
  constexpr int kNarrow = 60, kGap = 2;
  const std::vector<int> widths = this->widths();
  const int columns = output_columns();
  const int needed = std::accumulate(widths.begin(), widths.end(), -kGap,
                                     [](int sum, int width) { return sum + width + kGap; });
  if (columns > 0 && columns < kNarrow && needed > columns) return records();
  std::string out;
  auto add_line = [&](auto cell) {
    std::string line;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& content = cell(c);
      const std::string pad(static_cast<std::size_t>(widths[c] - display_width(content)), ' ');
      if (c > 0) line += std::string(kGap, ' ');
      line += columns_[c].align == Align::left ? content + pad : pad + content;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  };
  add_line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  std::vector<std::string> rules;
  for (int width : widths) {
    std::string rule;
    for (int i = 0; i < width; ++i) rule += "─";
    rules.push_back(rule);
  }
  add_line([&](std::size_t c) -> const std::string& { return rules[c]; });
  for (const auto& row : rows_)
    add_line([&](std::size_t c) -> const std::string& { return row[c]; });
  return out;
}

std::string fixed(double value, int digits) {
  std::array<char, 400> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%.*f", digits, value);
  return buffer.data();
}

std::string brief(double value) {
  const double size = std::fabs(value);
  if (size == 0) return "0";
  if (size < 1e-3 || size >= 1e9) {
    std::array<char, 32> buffer{};
    std::snprintf(buffer.data(), buffer.size(), "%.2e", value);
    return buffer.data();
  }
  return fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

std::string bytes_text(double bytes) {
  const std::array<const char*, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (std::fabs(bytes) >= 1024 && unit + 1 < units.size()) {
    bytes /= 1024;
    ++unit;
  }
  return (unit == 0 ? fixed(bytes, 0) : brief(bytes)) + " " + units[unit];
}

std::string ms_text(double ms) { return ms >= 1000 ? brief(ms / 1000) + " s" : brief(ms) + " ms"; }

}  // namespace tessera::tool
