#include "apps/tessera/figures.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/tessera/table.hpp"

namespace tessera::tool {

namespace {

constexpr double kWidth = 360, kMargin = 12, kTitle = 28;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

// UTF-8 of a code point that takes three bytes.
std::string utf8(std::uint32_t code) {
  return {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

// Whether to set the dot of a partly filled cell. Ordered dithering: thresholds vary between
// adjacent dots, so that the number of dots follows the share.
bool dithered(double share, int row, int col) {
  static constexpr std::array<std::array<int, 4>, 4> kOrder{
      {{0, 8, 2, 10}, {12, 4, 14, 6}, {3, 11, 1, 9}, {15, 7, 13, 5}}};
  const double threshold =
      (kOrder[static_cast<std::size_t>(row % 4)][static_cast<std::size_t>(col % 4)] + 0.5) / 16;
  return share > threshold;
}

std::string half_blocks(const Coverage& cells) {
  std::string out;
  for (int row = 0; row < cells.rows; row += 2) {
    for (int col = 0; col < cells.cols; ++col) {
      const bool upper = cells.at(row, col) > 0;
      const bool lower = row + 1 < cells.rows && cells.at(row + 1, col) > 0;
      out += upper ? (lower ? "█" : "▀") : lower ? "▄" : " ";
    }
    out += "\n";
  }
  return out;
}

std::string braille(const Coverage& cells) {
  // The eight dots of a character, by row and column, as bits of its code.
  static constexpr std::array<std::array<std::uint32_t, 2>, 4> kBits{
      {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
  std::string out;
  for (int row = 0; row < cells.rows; row += 4) {
    for (int col = 0; col < cells.cols; col += 2) {
      std::uint32_t dots = 0;
      for (int r = row; r < std::min(row + 4, cells.rows); ++r)
        for (int c = col; c < std::min(col + 2, cells.cols); ++c)
          if (dithered(cells.at(r, c), r, c))
            dots |= kBits[static_cast<std::size_t>(r - row)][static_cast<std::size_t>(c - col)];
      out += utf8(0x2800 + dots);
    }
    out += "\n";
  }
  return out;
}

double draw_pattern(Picture& picture, const Pattern& pattern, double top) {
  const Coverage cells = coverage(pattern, 128, 128);
  const double room = kWidth - 2 * kMargin;
  // Keeps the aspect ratio of the pattern, up to 4:1.
  const double rows = std::max(1.0, static_cast<double>(pattern.rows));
  const double cols = std::max(1.0, static_cast<double>(pattern.cols));
  const double width = room * std::clamp(cols / rows, 0.25, 1.0);
  const double height = room * std::clamp(rows / cols, 0.25, 1.0);
  const double cell_width = width / std::max(cells.cols, 1);
  const double cell_height = height / std::max(cells.rows, 1);
  const double left = kMargin + (room - width) / 2;
  picture.rect(left - 1, top - 1, width + 2, height + 2, Ink::line);
  picture.rect(left, top, width, height, Ink::panel);
  // Draws level by level, so that each level becomes one path; adjacent cells in a row become one
  // rectangle.
  constexpr int kLevels = 8;
  for (int level = 1; level <= kLevels; ++level) {
    auto level_of = [&](int row, int col) {
      return static_cast<int>(std::ceil(cells.at(row, col) * kLevels));
    };
    for (int row = 0; row < cells.rows; ++row)
      for (int col = 0; col < cells.cols;) {
        int end = col;
        while (end < cells.cols && level_of(row, end) == level) ++end;
        if (end > col)
          picture.rect(left + cell_width * col, top + cell_height * row, cell_width * (end - col),
                       cell_height, Ink::first, static_cast<double>(level) / kLevels);
        col = std::max(end, col + 1);
      }
  }
  return top + height;
}

std::string count_text(std::int64_t count) { return std::to_string(count); }

double draw_histogram(Picture& picture, const PatternStatistics& statistics, double top) {
  const double height = 110, bottom = top + height, room = kWidth - 2 * kMargin;
  const auto& counts = statistics.histogram_counts;
  const std::int64_t most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  const double step = counts.empty() ? room : room / static_cast<double>(counts.size());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const double tall =
        std::max(1.0, height * static_cast<double>(counts[i]) / static_cast<double>(most));
    picture.rect(kMargin + step * static_cast<double>(i) + 1, bottom - tall, step - 2, tall,
                 Ink::second);
  }
  picture.rect(kMargin, bottom, room, 1, Ink::line);
  if (!statistics.histogram_edges.empty()) {
    picture.text(kMargin, bottom + 16, count_text(statistics.shortest_row), 11, Ink::muted);
    picture.text(kWidth - kMargin, bottom + 16, count_text(statistics.longest_row), 11, Ink::muted,
                 Anchor::end);
    picture.text(kWidth - kMargin, top - 12, "highest bar: " + count_text(most) + " rows", 11,
                 Ink::muted, Anchor::end);
  }
  picture.text(kWidth / 2, bottom + 16, "blocks per row", 11, Ink::muted, Anchor::middle);
  return bottom + 16;
}

Picture start(const std::string& title) {
  Picture picture;
  picture.width = kWidth;
  picture.title = title;
  picture.text(kMargin, kTitle - 9, title, 13);
  return picture;
}

std::string caption(const Pattern& pattern, const std::string& kept) {
  return count_text(pattern.rows) + " x " + count_text(pattern.cols) + " blocks, " +
         count_text(pattern.stored()) + " " + kept + ": " + brief(pattern.density() * 100) + "%";
}

}  // namespace

Coverage coverage(const Pattern& pattern, int max_rows, int max_cols) {
  const std::int64_t tall = std::max<std::int64_t>(1, ceil_div(pattern.rows, max_rows));
  const std::int64_t wide = std::max<std::int64_t>(1, ceil_div(pattern.cols, max_cols));
  Coverage cells;
  cells.rows = static_cast<int>(ceil_div(pattern.rows, tall));
  cells.cols = static_cast<int>(ceil_div(pattern.cols, wide));
  cells.share.assign(static_cast<std::size_t>(cells.rows) * static_cast<std::size_t>(cells.cols),
                     0);
  for (std::int64_t row = 0; row < pattern.rows; ++row) {
    const std::int64_t height = std::min(tall, pattern.rows - row / tall * tall);
    for (auto p = pattern.offsets[static_cast<std::size_t>(row)];
         p < pattern.offsets[static_cast<std::size_t>(row) + 1]; ++p) {
      const std::int64_t col = pattern.indices[static_cast<std::size_t>(p)];
      const std::int64_t width = std::min(wide, pattern.cols - col / wide * wide);
      cells.share[static_cast<std::size_t>(row / tall * cells.cols + col / wide)] +=
          1.0 / (static_cast<double>(height) * static_cast<double>(width));
    }
  }
  return cells;
}

std::string terminal_preview(const Pattern& pattern, int columns) {
  if (pattern.cols <= columns && pattern.rows <= columns)
    return half_blocks(coverage(pattern, columns, columns));
  return braille(coverage(pattern, 2 * columns, 2 * columns));
}

Picture pattern_figure(const Pattern& pattern, const std::string& title, const std::string& kept) {
  Picture picture = start(title);
  const double bottom = draw_pattern(picture, pattern, kTitle);
  picture.text(kMargin, bottom + 18, caption(pattern, kept), 11, Ink::muted);
  picture.height = bottom + 26;
  return picture;
}

Picture pattern_and_rows_figure(const Pattern& pattern, const PatternStatistics& statistics,
                                const std::string& title) {
  Picture picture = pattern_figure(pattern, title, "stored");
  const double top = picture.height + 20;
  picture.text(kMargin, top, "Rows by length", 13);
  picture.height = draw_histogram(picture, statistics, top + 12) + 10;
  return picture;
}

Picture bar_figure(const std::vector<Bar>& bars, const std::string& title) {
  Picture picture = start(title);
  const double room = kWidth - 2 * kMargin;
  double most = 0;
  for (const Bar& bar : bars) most = std::max(most, bar.value);
  double y = kTitle;
  for (const Bar& bar : bars) {
    picture.text(kMargin, y + 12, bar.name, 11, Ink::muted);
    picture.text(kWidth - kMargin, y + 12, bar.label, 11, Ink::text, Anchor::end);
    picture.rect(kMargin, y + 18, room, 14, Ink::panel);
    if (most > 0) picture.rect(kMargin, y + 18, room * bar.value / most, 14, bar.ink);
    y += 44;
  }
  picture.height = y;
  return picture;
}

}  // namespace tessera::tool
