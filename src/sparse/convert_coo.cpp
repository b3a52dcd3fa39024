#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include <tessera/pattern.hpp>

#include "src/core/checked.hpp"
#include "src/sparse/support.hpp"

namespace tessera {
namespace {

using sparse::refuse;
using std::to_string;

void check_coo(const Coo& coo) {
  sparse::require_at_least(coo.rows, 0, "coo: rows");
  sparse::require_at_least(coo.cols, 0, "coo: cols");
  if (coo.col.size() != coo.row.size() || coo.value.size() != coo.row.size()) {
    refuse("coo: expected as many rows as columns and values, got " + to_string(coo.row.size()) +
           " rows, " + to_string(coo.col.size()) + " columns, " + to_string(coo.value.size()) +
           " values");
  }
  for (std::size_t e = 0; e < coo.row.size(); ++e) {
    if (coo.row[e] < 0 || coo.row[e] >= coo.rows || coo.col[e] < 0 || coo.col[e] >= coo.cols) {
      refuse("coo: entry " + to_string(e) + ": expected a position inside of " +
             to_string(coo.rows) + " x " + to_string(coo.cols) + ", got (" + to_string(coo.row[e]) +
             ", " + to_string(coo.col[e]) + ")");
    }
  }
}

// Rounds to f32 such that a second rounding to a shorter type gives the same result as rounding the
// double directly: an inexact result gets an odd last bit, so that it is never a tie.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (!std::isfinite(nearest) || static_cast<double>(nearest) == value) return nearest;
  const auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (bits & 1u) return nearest;
  // The value is between `nearest` and the neighbour on its other side, whose last bit is odd.
  const bool away = std::fabs(value) > std::fabs(static_cast<double>(nearest));
  return std::bit_cast<float>(away ? bits + 1 : bits - 1);
}

}  // namespace

Pattern pattern_of(const Coo& coo, std::int64_t block_rows, std::int64_t block_cols) {
  check_coo(coo);
  sparse::require_divides(coo.rows, block_rows, "block_rows", "rows");
  sparse::require_divides(coo.cols, block_cols, "block_cols", "columns");
  const std::int64_t rows = coo.rows / block_rows;

  // Distributes entries to block rows by a counting sort, then sorts each row.
  auto begin =
      sparse::filled<std::int64_t>(core::checked_add(rows, 1, "coo: rows"), 0, "coo: rows");
  for (const std::int64_t r : coo.row) ++begin[static_cast<std::size_t>(r / block_rows) + 1];
  for (std::size_t i = 1; i < begin.size(); ++i) begin[i] += begin[i - 1];
  std::vector<std::int64_t> cols(coo.col.size());
  std::vector<std::int64_t> next(begin.begin(), begin.end() - 1);
  for (std::size_t e = 0; e < coo.row.size(); ++e) {
    auto& place = next[static_cast<std::size_t>(coo.row[e] / block_rows)];
    cols[static_cast<std::size_t>(place++)] = coo.col[e] / block_cols;
  }
  Pattern pattern = sparse::open_pattern(rows, coo.cols / block_cols, "coo");
  for (std::size_t i = 0; i + 1 < begin.size(); ++i) {
    const auto first = cols.begin() + begin[i];
    std::sort(first, cols.begin() + begin[i + 1]);
    const auto last = std::unique(first, cols.begin() + begin[i + 1]);
    pattern.indices.insert(pattern.indices.end(), first, last);
    sparse::close_row(pattern);
  }
  return pattern;
}

HostBsr bsr_from_coo(const Coo& coo, std::int64_t block_rows, std::int64_t block_cols, DType dtype,
                     DType index) {
  const Pattern pattern = pattern_of(coo, block_rows, block_cols);
  HostBsr bsr = make_bsr(pattern, block_rows, block_cols, dtype, index);

  // Sorts entries so that equal coordinates are adjacent, in their given order. Each sum is rounded
  // once.
  std::vector<std::size_t> order(coo.row.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return coo.row[a] != coo.row[b] ? coo.row[a] < coo.row[b] : coo.col[a] < coo.col[b];
  });
  for (std::size_t e = 0; e < order.size();) {
    const std::int64_t r = coo.row[order[e]], c = coo.col[order[e]];
    double sum = 0.0;
    for (; e < order.size() && coo.row[order[e]] == r && coo.col[order[e]] == c; ++e) {
      sum += coo.value[order[e]];
    }
    const auto row = static_cast<std::size_t>(r / block_rows);
    const auto found =
        std::lower_bound(pattern.indices.begin() + pattern.offsets[row],
                         pattern.indices.begin() + pattern.offsets[row + 1], c / block_cols);
    const std::int64_t block = found - pattern.indices.begin();
    const std::int64_t place = (block * block_rows + r % block_rows) * block_cols + c % block_cols;
    const float value = dtype == DType::f32 ? static_cast<float>(sum) : round_to_odd(sum);
    store_from_float(bsr.values.data<std::byte>(), dtype, place, value);
  }
  return bsr;
}

HostBsr bsr_from_csr(std::int64_t rows, std::int64_t cols, const std::vector<std::int64_t>& offsets,
                     const std::vector<std::int64_t>& columns, const std::vector<double>& values,
                     std::int64_t block_rows, std::int64_t block_cols, DType dtype, DType index) {
  sparse::require_at_least(rows, 0, "csr: rows");
  if (static_cast<std::int64_t>(offsets.size()) - 1 != rows) {
    refuse("csr: offsets: expected one more than the " + to_string(rows) + " rows, got " +
           to_string(offsets.size()));
  }
  const auto stored = static_cast<std::int64_t>(columns.size());
  if (offsets.front() != 0 || offsets.back() != stored) {
    refuse("csr: offsets: expected 0 to the " + to_string(stored) + " columns, got " +
           to_string(offsets.front()) + " to " + to_string(offsets.back()));
  }
  Coo coo{rows, cols, {}, columns, values};
  coo.row.reserve(columns.size());
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t end = offsets[static_cast<std::size_t>(i) + 1];
    if (offsets[static_cast<std::size_t>(i)] > end || end > stored) {
      refuse("csr: offsets: expected " + to_string(offsets[static_cast<std::size_t>(i)]) + " to " +
             to_string(stored) + " at entry " + to_string(i + 1) + ", got " + to_string(end));
    }
    coo.row.resize(static_cast<std::size_t>(end), i);
  }
  return bsr_from_coo(coo, block_rows, block_cols, dtype, index);
}

}  // namespace tessera
