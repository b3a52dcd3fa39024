#pragma once

#include <string>
#include <tessera/pattern.hpp>
#include <vector>

#include "apps/tessera/picture.hpp"

namespace tessera::tool {

/// How much of each cell of a rows x cols grid a pattern fills, 0 to 1: what pictures and previews
/// show of patterns too large to show block by block.
struct Coverage {
  int rows = 0, cols = 0;
  std::vector<double> share;

  double at(int row, int col) const { return share[static_cast<std::size_t>(row * cols + col)]; }
};
/// At most `max_rows` x `max_cols` cells, a whole number of blocks each.
Coverage coverage(const Pattern& pattern, int max_rows, int max_cols);

/// The pattern in a terminal: half blocks where it fits, else braille dots.
std::string terminal_preview(const Pattern& pattern, int columns);

/// A figure of the blocks, as wide as a phone. `kept` says what those of the pattern are: "stored",
/// "visible".
Picture pattern_figure(const Pattern& pattern, const std::string& title, const std::string& kept);
/// The same with the histogram of row lengths under it.
Picture pattern_and_rows_figure(const Pattern& pattern, const PatternStatistics& statistics,
                                const std::string& title);

struct Bar {
  std::string name, label;
  double value = 0;
  Ink ink = Ink::first;
};
/// Horizontal bars from zero, labelled with names and values.
Picture bar_figure(const std::vector<Bar>& bars, const std::string& title);

}  // namespace tessera::tool
