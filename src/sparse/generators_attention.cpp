#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <utility>
#include <vector>

#include <tessera/pattern.hpp>

#include "src/core/checked.hpp"
#include "src/sparse/random.hpp"
#include "src/sparse/rows.hpp"
#include "src/sparse/support.hpp"

// Patterns of attention in long contexts and in videos. Version 1, frozen like `generators.cpp`.
namespace tessera::patterns {
namespace {

using sparse::append;
using sparse::append_range;
using sparse::append_set;
using sparse::close_row;
using sparse::open_pattern;
using sparse::Random;
using sparse::Sampler;

// The number of columns that row i may store: all, or those up to the bottom-right diagonal.
std::int64_t visible_columns(std::int64_t i, std::int64_t rows, std::int64_t cols, bool causal) {
  return causal ? std::clamp<std::int64_t>(cols - (rows - 1 - i), 0, cols) : cols;
}

// min(count, n) distinct numbers of [0, n): `always` and random others.
std::vector<std::int64_t> draw_with(Random& random, std::int64_t n, std::int64_t count,
                                    std::int64_t always) {
  if (n == 0 || count == 0) return {};
  std::vector<std::int64_t> drawn = Sampler(n - 1).draw(random, std::min(count, n) - 1);
  for (std::int64_t& pick : drawn) pick += pick >= always ? 1 : 0;
  drawn.push_back(always);
  return drawn;
}

}  // namespace

Pattern vertical_slash(std::int64_t rows, std::int64_t cols, std::int64_t verticals,
                       std::int64_t slashes, bool causal, std::uint64_t seed) {
  sparse::require_at_least(verticals, 0, "vertical_slash: verticals");
  sparse::require_at_least(slashes, 0, "vertical_slash: slashes");
  Pattern pattern = open_pattern(rows, cols, "vertical_slash");
  Random source(seed);
  const std::vector<std::int64_t> columns = draw_with(source, cols, verticals, 0);
  // A diagonal is identified by its column in the last row, which may be beyond the edge.
  const std::int64_t beyond = causal || cols == 0 ? 0 : std::max<std::int64_t>(rows - 1, 0);
  const std::int64_t diagonals = core::checked_add(cols, beyond, "vertical_slash: cols");
  const std::vector<std::int64_t> ends = draw_with(source, diagonals, slashes, cols - 1);
  std::vector<std::int64_t> row;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t end = visible_columns(i, rows, cols, causal);
    row.clear();
    for (const std::int64_t column : columns) {
      if (column < end) row.push_back(column);
    }
    for (const std::int64_t last : ends) {
      const std::int64_t column = last - (rows - 1 - i);
      if (column >= 0 && column < end) row.push_back(column);
    }
    append_set(pattern, row);
    close_row(pattern);
  }
  return pattern;
}

Pattern heavy_hitters(std::int64_t rows, std::int64_t cols, std::int64_t k, bool causal,
                      std::uint64_t seed) {
  // Integer scores, so that results are equal on every machine.
  constexpr std::int64_t kScore = std::int64_t{1} << 20, kNoise = kScore / 64;
  sparse::require_at_least(k, 0, "heavy_hitters: k");
  Pattern pattern = open_pattern(rows, cols, "heavy_hitters");
  Random source(seed);
  auto rank = sparse::filled<std::int64_t>(cols, 0, "heavy_hitters: cols");
  std::iota(rank.begin(), rank.end(), 0);
  source.shuffle(rank);
  // The first column has the highest score in all rows.
  if (cols > 0) std::swap(*std::find(rank.begin(), rank.end(), 0), rank.front());
  auto score = sparse::filled<std::int64_t>(cols, 0, "heavy_hitters: cols");
  std::vector<std::int64_t> row;
  sparse::reserve(row, cols, "heavy_hitters: cols");
  const auto better = [&](std::int64_t a, std::int64_t b) {
    const auto x = score[static_cast<std::size_t>(a)], y = score[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t end = visible_columns(i, rows, cols, causal);
    for (std::int64_t j = 0; j < end; ++j) {
      const auto place = static_cast<std::size_t>(j);
      const std::int64_t distance = std::abs(cols - (rows - 1 - i) - 1 - j);
      score[place] = kScore / (1 + distance) + kScore / (1 + rank[place]) + source.below(kNoise);
    }
    row.resize(static_cast<std::size_t>(end));
    std::iota(row.begin(), row.end(), 0);
    if (k < end) {
      std::nth_element(row.begin(), row.begin() + k, row.end(), better);
      row.resize(static_cast<std::size_t>(k));
    }
    append_set(pattern, row);
    close_row(pattern);
  }
  return pattern;
}

Pattern sliding_tile(const std::array<std::int64_t, 3>& volume,
                     const std::array<std::int64_t, 3>& neighbourhood, std::int64_t blocks) {
  for (const std::int64_t size : volume) sparse::require_at_least(size, 1, "sliding_tile: volume");
  for (const std::int64_t size : neighbourhood) {
    sparse::require_at_least(size, 1, "sliding_tile: neighbourhood");
  }
  sparse::require_at_least(blocks, 1, "sliding_tile: blocks");
  std::int64_t lines = blocks;
  for (const std::int64_t size : volume) {
    lines = core::checked_multiply(lines, size, "sliding_tile: volume");
  }
  Pattern pattern = open_pattern(lines, lines, "sliding_tile");
  // The first tile that a tile sees along an axis; the box is shifted inwards at the edges.
  const auto first = [&](std::size_t axis, std::int64_t at) {
    const std::int64_t most = std::max<std::int64_t>(0, volume[axis] - neighbourhood[axis]);
    return std::clamp<std::int64_t>(at - neighbourhood[axis] / 2, 0, most);
  };
  const auto count = [&](std::size_t axis) { return std::min(neighbourhood[axis], volume[axis]); };
  for (std::int64_t i = 0; i < lines; ++i) {
    const std::int64_t tile = i / blocks;
    const std::int64_t frame = first(0, tile / (volume[1] * volume[2]));
    const std::int64_t y = first(1, tile / volume[2] % volume[1]);
    const std::int64_t x = first(2, tile % volume[2]);
    for (std::int64_t f = frame; f < frame + count(0); ++f) {
      for (std::int64_t h = y; h < y + count(1); ++h) {
        const std::int64_t begin = (f * volume[1] + h) * volume[2] + x;
        append_range(pattern, begin * blocks, (begin + count(2)) * blocks);
      }
    }
    close_row(pattern);
  }
  return pattern;
}

}  // namespace tessera::patterns
