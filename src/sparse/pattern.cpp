#include <tessera/pattern.hpp>

#include <algorithm>
#include <string>

#include "src/core/checked.hpp"
#include "src/sparse/support.hpp"

namespace tessera {

double Pattern::density() const {
  if (rows == 0 || cols == 0) return 0.0;
  return static_cast<double>(stored()) / static_cast<double>(rows) / static_cast<double>(cols);
}

bool Pattern::contains(std::int64_t row, std::int64_t col) const {
  if (row < 0 || row >= rows) return false;
  const auto begin = indices.begin() + offsets[static_cast<std::size_t>(row)];
  const auto end = indices.begin() + offsets[static_cast<std::size_t>(row) + 1];
  return std::binary_search(begin, end, col);
}

void validate(const Pattern& pattern) {
  using sparse::refuse;
  using std::to_string;
  sparse::require_at_least(pattern.rows, 0, "pattern: rows");
  sparse::require_at_least(pattern.cols, 0, "pattern: cols");
  const auto& offsets = pattern.offsets;
  if (static_cast<std::int64_t>(offsets.size()) - 1 != pattern.rows) {
    refuse("pattern: offsets: expected one more than the " + to_string(pattern.rows) +
           " rows, got " + to_string(offsets.size()));
  }
  if (offsets.front() != 0 || offsets.back() != pattern.stored()) {
    refuse("pattern: offsets: expected 0 to the " + to_string(pattern.stored()) +
           " stored blocks, got " + to_string(offsets.front()) + " to " +
           to_string(offsets.back()));
  }
  // Checks all offsets before it reads indices through them.
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (offsets[i] > offsets[i + 1]) {
      refuse("pattern: offsets: expected offsets that never decrease, got " +
             to_string(offsets[i + 1]) + " after " + to_string(offsets[i]) + " in row " +
             to_string(i));
    }
  }
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    std::int64_t last = -1;
    for (std::int64_t p = offsets[i]; p < offsets[i + 1]; ++p) {
      const std::int64_t col = pattern.indices[static_cast<std::size_t>(p)];
      if (col < 0 || col >= pattern.cols) {
        refuse("pattern: indices: expected columns in [0, " + to_string(pattern.cols) + "), got " +
               to_string(col) + " in row " + to_string(i));
      }
      if (col <= last) {
        refuse("pattern: indices: expected sorted and unique columns, got " + to_string(col) +
               " after " + to_string(last) + " in row " + to_string(i));
      }
      last = col;
    }
  }
}

TransposedLists transposed_lists(const Pattern& pattern) {
  validate(pattern);
  const auto stored = static_cast<std::size_t>(pattern.stored());
  TransposedLists lists;
  lists.offsets = sparse::filled<std::int64_t>(core::checked_add(pattern.cols, 1, "pattern: cols"),
                                               0, "pattern: cols");
  lists.row_indices.resize(stored);
  lists.positions.resize(stored);
  for (const std::int64_t col : pattern.indices) ++lists.offsets[static_cast<std::size_t>(col) + 1];
  for (std::size_t j = 1; j < lists.offsets.size(); ++j) lists.offsets[j] += lists.offsets[j - 1];

  std::vector<std::int64_t> next(lists.offsets.begin(), lists.offsets.end() - 1);
  for (std::int64_t i = 0; i < pattern.rows; ++i) {
    const auto row = static_cast<std::size_t>(i);
    for (std::int64_t p = pattern.offsets[row]; p < pattern.offsets[row + 1]; ++p) {
      const auto col = static_cast<std::size_t>(pattern.indices[static_cast<std::size_t>(p)]);
      const auto place = static_cast<std::size_t>(next[col]++);
      lists.row_indices[place] = i;
      lists.positions[place] = p;
    }
  }
  return lists;
}

Pattern transpose(const Pattern& pattern) {
  TransposedLists lists = transposed_lists(pattern);
  return {pattern.cols, pattern.rows, std::move(lists.offsets), std::move(lists.row_indices)};
}

Pattern coarsen(const Pattern& pattern, std::int64_t row_factor, std::int64_t col_factor) {
  validate(pattern);
  sparse::require_divides(pattern.rows, row_factor, "coarsen: row_factor", "rows");
  sparse::require_divides(pattern.cols, col_factor, "coarsen: col_factor", "columns");
  Pattern coarse =
      sparse::open_pattern(pattern.rows / row_factor, pattern.cols / col_factor, "coarsen");
  std::vector<std::int64_t> row;
  for (std::int64_t i = 0; i < coarse.rows; ++i) {
    const auto begin = pattern.offsets[static_cast<std::size_t>(i * row_factor)];
    const auto end = pattern.offsets[static_cast<std::size_t>((i + 1) * row_factor)];
    row.assign(pattern.indices.begin() + begin, pattern.indices.begin() + end);
    for (std::int64_t& col : row) col /= col_factor;
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
    coarse.indices.insert(coarse.indices.end(), row.begin(), row.end());
    sparse::close_row(coarse);
  }
  return coarse;
}

Pattern refine(const Pattern& pattern, std::int64_t row_factor, std::int64_t col_factor) {
  validate(pattern);
  sparse::require_at_least(row_factor, 1, "refine: row_factor");
  sparse::require_at_least(col_factor, 1, "refine: col_factor");
  Pattern fine = sparse::open_pattern(
      core::checked_multiply(pattern.rows, row_factor, "refine: row_factor"),
      core::checked_multiply(pattern.cols, col_factor, "refine: col_factor"), "refine");
  const std::int64_t copies = core::checked_multiply(row_factor, col_factor, "refine: factors");
  sparse::reserve(fine.indices, core::checked_multiply(pattern.stored(), copies, "refine: factors"),
                  "refine: factors");
  for (std::int64_t i = 0; i < fine.rows; ++i) {
    const auto row = static_cast<std::size_t>(i / row_factor);
    for (std::int64_t p = pattern.offsets[row]; p < pattern.offsets[row + 1]; ++p) {
      const std::int64_t first = pattern.indices[static_cast<std::size_t>(p)] * col_factor;
      for (std::int64_t j = 0; j < col_factor; ++j) fine.indices.push_back(first + j);
    }
    sparse::close_row(fine);
  }
  return fine;
}

Pattern pattern_from_bool(const Tensor& blocks) {
  sparse::require_host(core::Where("blocks"), blocks, 2);
  if (blocks.dtype != DType::u8) {
    sparse::refuse("blocks: expected u8, got " + to_string(blocks));
  }
  Pattern pattern = sparse::open_pattern(blocks.size(0), blocks.size(1), "blocks");
  const auto* data = static_cast<const std::uint8_t*>(blocks.data);
  for (std::int64_t i = 0; i < pattern.rows; ++i) {
    for (std::int64_t j = 0; j < pattern.cols; ++j) {
      if (data[i * blocks.stride(0) + j * blocks.stride(1)] != 0) pattern.indices.push_back(j);
    }
    sparse::close_row(pattern);
  }
  return pattern;
}

}  // namespace tessera
