#pragma once

#include <string>
#include <tessera/pattern.hpp>
#include <vector>

#include "apps/tessera/picture.hpp"

namespace tessera::tool {

/// A pattern scaled down to a grid of rows x cols cells: the share of stored blocks in each cell, 0
/// to 1. Pictures and previews show it, as patterns may be too large to show block by block.
struct Coverage {
  int rows = 0, cols = 0;
  std::vector<double> share;

  double at(int row, int col) const { return share[static_cast<std::size_t>(row * cols + col)]; }
};
/// Scales a pattern to at most `max_rows` x `max_cols` cells of a whole number of blocks.
Coverage coverage(const Pattern& pattern, int max_rows, int max_cols);

/// The pattern as text, `columns` characters wide: half-block characters if it fits, else braille.
std::string terminal_preview(const Pattern& pattern, int columns);

/// A figure of the pattern's blocks, narrow enough for a phone. `kept` is the caption's adjective
/// for blocks of the pattern: "stored", "visible".
Picture pattern_figure(const Pattern& pattern, const std::string& title, const std::string& kept);
/// The same figure with a histogram of row lengths below it.
Picture pattern_and_rows_figure(const Pattern& pattern, const PatternStatistics& statistics,
                                const std::string& title);

struct Bar {
  std::string name, label;
  double value = 0;
  Ink ink = Ink::first;
};
/// A figure of horizontal bars from zero, labelled with names and values.
Picture bar_figure(const std::vector<Bar>& bars, const std::string& title);

}  // namespace tessera::tool
