#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "src/core/check.hpp"
#include "src/problem/shape.hpp"

// Which elements of a matrix share a factor: the shape of the factors says it.
namespace tessera::planning {

/// The length of a block of elements that share a factor.
inline constexpr std::int64_t kScaleBlock = 128;

/// Factors of the rows of a head, each for `rows` of them.
constexpr std::int64_t scale_rows(std::int64_t length, std::int64_t rows) {
  return (length + rows - 1) / rows;
}
/// Factors of a line of a matrix, each for a block of its elements.
constexpr std::int64_t scale_blocks(std::int64_t length) { return scale_rows(length, kScaleBlock); }
/// How many rows of a head share one of `factors`: 128 where that gives as many, else 64.
constexpr std::int64_t rows_per_scale(std::int64_t length, std::int64_t factors) {
  return factors == scale_rows(length, kScaleBlock) ? kScaleBlock : kScaleBlock / 2;
}

/// Rows and columns of the boxes that share one of `scale_rows` x `scale_cols` factors: one for
/// all, one per row or column, or per block of 128 of a row, of a column or of both. Boxes end with
/// the matrix. Empty if no form has that many.
inline std::optional<BlockShape> scale_box(std::int64_t rows, std::int64_t cols,
                                           std::int64_t scale_rows, std::int64_t scale_cols) {
  enum { kAll = 1, kEach = 2, kBlocks = 4 };
  const auto forms = [](std::int64_t length, std::int64_t factors) {
    return (factors == 1 ? kAll : 0) | (factors == length ? kEach : 0) |
           (factors == scale_blocks(length) ? kBlocks : 0);
  };
  const int r = forms(rows, scale_rows), c = forms(cols, scale_cols);
  const auto are = [&](int row_form, int col_form) { return (r & row_form) && (c & col_form); };
  if (!are(kAll, kAll) && !are(kEach, kAll) && !are(kAll, kEach) && !are(kEach, kBlocks) &&
      !are(kBlocks, kEach) && !are(kBlocks, kBlocks))
    return std::nullopt;
  const auto length_of = [](int form, std::int64_t length) {
    const std::int64_t all = std::max<std::int64_t>(length, 1);
    return form & kAll ? all : form & kEach ? 1 : std::min(kScaleBlock, all);
  };
  return BlockShape{length_of(r, rows), length_of(c, cols)};
}

/// The shapes that `scale_box` accepts, for messages; `lead` stands before them.
inline std::string scale_shapes(std::int64_t rows, std::int64_t cols,
                                const std::string& lead = "") {
  const auto shape = [&](std::int64_t r, std::int64_t c) {
    return core::words("[", lead, r, ", ", c, "]");
  };
  const std::int64_t rb = scale_blocks(rows), cb = scale_blocks(cols);
  return core::words(shape(1, 1), " (all), ", shape(rows, 1), " (rows), ", shape(1, cols),
                     " (columns), ", shape(rows, cb), " or ", shape(rb, cols),
                     " (128 of a row or column) or ", shape(rb, cb), " (128 x 128)");
}

}  // namespace tessera::planning
