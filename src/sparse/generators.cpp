#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <tessera/pattern.hpp>

#include "src/core/checked.hpp"
#include "src/sparse/power_law.hpp"
#include "src/sparse/random.hpp"
#include "src/sparse/rows.hpp"
#include "src/sparse/support.hpp"

// Version 1 of the generators. Measurements on different machines rely on equal patterns: any
// change of counts or positions is a new version.
namespace tessera::patterns {
namespace {

using sparse::append;
using sparse::append_range;
using sparse::close_row;
using sparse::open_pattern;
using sparse::Random;
using sparse::refuse;
using sparse::Sampler;

// The column in which the diagonal that joins the corners crosses the middle of row i.
std::int64_t diagonal(std::int64_t i, std::int64_t rows, std::int64_t cols) {
  return (2 * i + 1) * cols / (2 * rows);
}

void check_diagonal(std::int64_t rows, std::int64_t cols, const std::string& argument) {
  core::checked_multiply(core::checked_multiply(rows, 2, argument), cols, argument);
}

}  // namespace

Pattern random(std::int64_t rows, std::int64_t cols, double density, std::uint64_t seed) {
  sparse::require_density(density, "random: density");
  Pattern pattern = open_pattern(rows, cols, "random");
  std::int64_t count = std::llround(density * static_cast<double>(cols));
  if (density > 0.0 && cols > 0) count = std::max<std::int64_t>(count, 1);
  sparse::reserve(pattern.indices, core::checked_multiply(rows, count, "random: rows"),
                  "random: rows");
  Random source(seed);
  Sampler sampler(cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    append(pattern, sampler.draw(source, count));
    close_row(pattern);
  }
  return pattern;
}

Pattern banded(std::int64_t rows, std::int64_t cols, std::int64_t half_width) {
  sparse::require_at_least(half_width, 0, "banded: half_width");
  Pattern pattern = open_pattern(rows, cols, "banded");
  check_diagonal(rows, cols, "banded: rows");
  const std::int64_t reach = std::min(half_width, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t centre = diagonal(i, rows, cols);
    append_range(pattern, std::max<std::int64_t>(0, centre - reach),
                 std::min(cols, centre + reach + 1));
    close_row(pattern);
  }
  return pattern;
}

Pattern causal(std::int64_t rows, std::int64_t cols) {
  Pattern pattern = open_pattern(rows, cols, "causal");
  for (std::int64_t i = 0; i < rows; ++i) {
    append_range(pattern, 0, cols - (rows - 1 - i));
    close_row(pattern);
  }
  return pattern;
}

Pattern bigbird(std::int64_t rows, std::int64_t cols, std::int64_t half_width, std::int64_t global,
                std::int64_t random, std::uint64_t seed) {
  sparse::require_at_least(half_width, 0, "bigbird: half_width");
  sparse::require_at_least(global, 0, "bigbird: global");
  sparse::require_at_least(random, 0, "bigbird: random");
  Pattern pattern = open_pattern(rows, cols, "bigbird");
  check_diagonal(rows, cols, "bigbird: rows");
  const std::int64_t reach = std::min(half_width, cols);
  Random source(seed);
  Sampler sampler(cols);
  std::vector<std::int64_t> row, free;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t centre = diagonal(i, rows, cols);
    row.clear();
    free.clear();
    for (std::int64_t j = 0; j < cols; ++j) {
      const bool stored = i < global || j < global || std::abs(j - centre) <= reach;
      (stored ? row : free).push_back(j);
    }
    const auto places = static_cast<std::int64_t>(free.size());
    for (const std::int64_t pick : sampler.draw(source, places, std::min(random, places))) {
      row.push_back(free[static_cast<std::size_t>(pick)]);
    }
    std::sort(row.begin(), row.end());
    append(pattern, row);
    close_row(pattern);
  }
  return pattern;
}

Pattern block_diagonal(std::int64_t rows, std::int64_t cols, std::int64_t groups, double zipf,
                       std::uint64_t seed) {
  sparse::require_at_least(groups, 1, "block_diagonal: groups");
  if (!(zipf >= 0.0))
    refuse("block_diagonal: zipf: expected 0 or more, got " + std::to_string(zipf));
  Pattern pattern = open_pattern(rows, cols, "block_diagonal");
  core::checked_multiply(groups, std::max(rows, cols), "block_diagonal: groups");
  std::vector<std::int64_t> heights;
  if (zipf > 0.0) {
    heights = sparse::zipf_shares(groups, zipf, rows, rows);
    Random(seed).shuffle(heights);
  } else {
    sparse::reserve(heights, groups, "block_diagonal: groups");
    for (std::int64_t g = 0; g < groups; ++g) {
      heights.push_back((g + 1) * rows / groups - g * rows / groups);
    }
  }
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t i = 0; i < heights[static_cast<std::size_t>(g)]; ++i) {
      append_range(pattern, g * cols / groups, (g + 1) * cols / groups);
      close_row(pattern);
    }
  }
  return pattern;
}

Pattern butterfly(std::int64_t rows, std::int64_t cols, std::int64_t levels) {
  constexpr std::int64_t kMaxLevels = 62;
  if (levels < 0 || levels > kMaxLevels) {
    refuse("butterfly: levels: expected 0 to 62, got " + std::to_string(levels));
  }
  Pattern pattern = open_pattern(rows, cols, "butterfly");
  check_diagonal(rows, cols, "butterfly: rows");
  // Stretches the square pattern along the longer side.
  const std::int64_t side = std::min(rows, cols);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t line = i * side / rows;
    std::vector<std::int64_t> places{line};
    for (std::int64_t k = 0; k < levels; ++k) places.push_back(line ^ (std::int64_t{1} << k));
    std::sort(places.begin(), places.end());
    for (const std::int64_t place : places) {
      if (place >= side) break;
      append_range(pattern, (place * cols + side - 1) / side,
                   ((place + 1) * cols + side - 1) / side);
    }
    close_row(pattern);
  }
  return pattern;
}

Pattern power_law(std::int64_t rows, std::int64_t cols, double density, double exponent,
                  std::uint64_t seed) {
  sparse::require_power_law(density, exponent, "power_law");
  Pattern pattern = open_pattern(rows, cols, "power_law");
  const std::int64_t total = sparse::stored_at(density, rows, cols, "power_law");
  sparse::reserve(pattern.indices, total, "power_law: rows");
  std::vector<std::int64_t> lengths = sparse::zipf_shares(rows, exponent, total, cols);
  Random source(seed);
  source.shuffle(lengths);
  Sampler sampler(cols);
  for (const std::int64_t length : lengths) {
    append(pattern, sampler.draw(source, length));
    close_row(pattern);
  }
  return pattern;
}

Pattern top_k(const Tensor& scores, std::int64_t k) {
  sparse::require_host(core::Where("top_k") / "scores", scores, 2);
  if (!(core::dtypes({scores.dtype}) & core::kValues)) {
    refuse("top_k: scores: expected a float type, got " + to_string(scores));
  }
  const std::int64_t rows = scores.size(0), cols = scores.size(1);
  if (k < 0 || k > cols) {
    refuse("top_k: k: expected 0 to the " + std::to_string(cols) + " columns, got " +
           std::to_string(k));
  }
  Pattern pattern = open_pattern(rows, cols, "top_k: scores");
  auto row = sparse::filled<float>(cols, 0.0f, "top_k: scores");
  auto order = sparse::filled<std::int64_t>(cols, 0, "top_k: scores");
  // A NaN counts as the largest, as in PyTorch.
  const auto better = [&](std::int64_t a, std::int64_t b) {
    const float x = row[static_cast<std::size_t>(a)], y = row[static_cast<std::size_t>(b)];
    if (std::isnan(x) != std::isnan(y)) return std::isnan(x);
    return x > y || (!(x < y) && a < b);
  };
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < cols; ++j) {
      row[static_cast<std::size_t>(j)] =
          load_as_float(scores.data, scores.dtype, i * scores.stride(0) + j * scores.stride(1));
    }
    std::iota(order.begin(), order.end(), 0);
    std::nth_element(order.begin(), order.begin() + k, order.end(), better);
    std::sort(order.begin(), order.begin() + k);
    pattern.indices.insert(pattern.indices.end(), order.begin(), order.begin() + k);
    close_row(pattern);
  }
  return pattern;
}

}  // namespace tessera::patterns
