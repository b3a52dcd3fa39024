#include <algorithm>
#include <string>

#include <tessera/pattern.hpp>

#include "src/sparse/support.hpp"

namespace tessera {
namespace {

// The number of columns that two sorted rows share.
std::int64_t common(const Pattern& pattern, std::size_t a, std::size_t b) {
  std::int64_t count = 0;
  std::int64_t p = pattern.offsets[a], q = pattern.offsets[b];
  while (p < pattern.offsets[a + 1] && q < pattern.offsets[b + 1]) {
    const std::int64_t x = pattern.indices[static_cast<std::size_t>(p)];
    const std::int64_t y = pattern.indices[static_cast<std::size_t>(q)];
    count += x == y;
    p += x <= y;
    q += y <= x;
  }
  return count;
}

double neighbour_overlap(const Pattern& pattern, const std::vector<std::int64_t>& lengths) {
  double sum = 0.0;
  std::int64_t rows = 0;
  for (std::size_t i = 0; i + 1 < lengths.size(); ++i) {
    if (lengths[i] == 0) continue;
    sum += static_cast<double>(common(pattern, i, i + 1)) / static_cast<double>(lengths[i]);
    ++rows;
  }
  return rows == 0 ? 0.0 : sum / static_cast<double>(rows);
}

// Fills bins of equal width, from the shortest row to the longest.
void fill_histogram(PatternStatistics& result, const std::vector<std::int64_t>& lengths, int bins) {
  const std::int64_t range = result.longest_row - result.shortest_row + 1;
  const std::int64_t width = (range - 1) / bins + 1;
  const std::int64_t used = (range - 1) / width + 1;
  for (std::int64_t e = 0; e <= used; ++e) {
    result.histogram_edges.push_back(result.shortest_row + e * width);
  }
  result.histogram_counts.assign(static_cast<std::size_t>(used), 0);
  for (const std::int64_t length : lengths) {
    ++result.histogram_counts[static_cast<std::size_t>((length - result.shortest_row) / width)];
  }
}

}  // namespace

PatternStatistics statistics(const Pattern& pattern, int bins) {
  validate(pattern);
  sparse::require_at_least(bins, 1, "statistics: bins");
  PatternStatistics result;
  result.rows = pattern.rows;
  result.cols = pattern.cols;
  result.stored = pattern.stored();
  result.density = pattern.density();

  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i + 1 < pattern.offsets.size(); ++i) {
    lengths.push_back(pattern.offsets[i + 1] - pattern.offsets[i]);
  }
  if (!lengths.empty()) {
    const auto [shortest, longest] = std::minmax_element(lengths.begin(), lengths.end());
    result.shortest_row = *shortest;
    result.longest_row = *longest;
    result.mean_row = static_cast<double>(result.stored) / static_cast<double>(result.rows);
  }
  result.empty_rows = std::count(lengths.begin(), lengths.end(), 0);
  std::vector<std::int64_t> seen = pattern.indices;
  std::sort(seen.begin(), seen.end());
  result.empty_cols = result.cols - (std::unique(seen.begin(), seen.end()) - seen.begin());
  result.imbalance =
      result.stored == 0 ? 1.0 : static_cast<double>(result.longest_row) / result.mean_row;
  result.neighbour_overlap = neighbour_overlap(pattern, lengths);
  fill_histogram(result, lengths, bins);
  return result;
}

}  // namespace tessera
