#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include <tessera/pattern.hpp>

#include "src/core/checked.hpp"
#include "src/sparse/support.hpp"

namespace tessera {
namespace {

using sparse::refuse;

// The dense matrix as a grid of blocks.
struct Grid {
  const Tensor& dense;
  std::int64_t block_rows, block_cols, rows, cols;  // rows and cols count blocks

  Grid(const Tensor& tensor, std::int64_t height, std::int64_t width)
      : dense(tensor), block_rows(height), block_cols(width) {
    sparse::require_host(core::Where("dense"), dense, 2);
    sparse::require_divides(dense.size(0), block_rows, "block_rows", "rows");
    sparse::require_divides(dense.size(1), block_cols, "block_cols", "columns");
    rows = dense.size(0) / block_rows;
    cols = dense.size(1) / block_cols;
  }

  std::int64_t offset(std::int64_t i, std::int64_t j) const {
    return i * dense.stride(0) + j * dense.stride(1);
  }

  // Calls `function` for each element of block (i, j) until it returns false.
  template <class Function>
  bool all_of_block(std::int64_t i, std::int64_t j, Function&& function) const {
    for (std::int64_t r = i * block_rows; r < (i + 1) * block_rows; ++r) {
      for (std::int64_t c = j * block_cols; c < (j + 1) * block_cols; ++c) {
        if (!function(load_as_float(dense.data, dense.dtype, offset(r, c)))) return false;
      }
    }
    return true;
  }
};

HostBsr take_blocks(const Grid& grid, const Pattern& pattern, DType index) {
  const Tensor& dense = grid.dense;
  HostBsr bsr = make_bsr(pattern, grid.block_rows, grid.block_cols, dense.dtype, index);
  const std::int64_t bytes = size_of(dense.dtype);
  const auto* from = static_cast<const std::byte*>(dense.data);
  auto* to = bsr.values.data<std::byte>();
  for (std::int64_t i = 0; i < pattern.rows; ++i) {
    const auto row = static_cast<std::size_t>(i);
    for (std::int64_t p = pattern.offsets[row]; p < pattern.offsets[row + 1]; ++p) {
      const std::int64_t col = pattern.indices[static_cast<std::size_t>(p)] * grid.block_cols;
      for (std::int64_t r = i * grid.block_rows; r < (i + 1) * grid.block_rows; ++r) {
        sparse::copy_elements(to, 1, from + grid.offset(r, col) * bytes, dense.stride(1),
                              grid.block_cols, bytes);
        to += grid.block_cols * bytes;
      }
    }
  }
  return bsr;
}

}  // namespace

HostBsr bsr_from_dense(const Tensor& dense, std::int64_t block_rows, std::int64_t block_cols,
                       double threshold, DType index) {
  if (std::isnan(threshold)) refuse("threshold: expected a number, got NaN");
  const Grid grid(dense, block_rows, block_cols);
  Pattern pattern = sparse::open_pattern(grid.rows, grid.cols, "dense");
  // False for NaN, so that a block with a NaN is kept.
  const auto small = [&](float x) { return std::fabs(static_cast<double>(x)) <= threshold; };
  for (std::int64_t i = 0; i < grid.rows; ++i) {
    for (std::int64_t j = 0; j < grid.cols; ++j) {
      if (!grid.all_of_block(i, j, small)) pattern.indices.push_back(j);
    }
    sparse::close_row(pattern);
  }
  return take_blocks(grid, pattern, index);
}

HostBsr bsr_keep_densest(const Tensor& dense, std::int64_t block_rows, std::int64_t block_cols,
                         double density, DType index) {
  sparse::require_density(density, "density");
  const Grid grid(dense, block_rows, block_cols);
  const std::int64_t blocks = core::checked_multiply(grid.rows, grid.cols, "dense");
  auto weights = sparse::filled<double>(blocks, 0.0, "dense");
  for (std::int64_t b = 0; b < blocks; ++b) {
    double& weight = weights[static_cast<std::size_t>(b)];
    grid.all_of_block(b / grid.cols, b % grid.cols, [&](float x) {
      weight += static_cast<double>(x) * static_cast<double>(x);
      return true;
    });
    if (std::isnan(weight))
      refuse("dense: expected no NaN, got one in block (" + std::to_string(b / grid.cols) + ", " +
             std::to_string(b % grid.cols) + ")");
  }
  auto order = sparse::filled<std::int64_t>(blocks, 0, "dense");
  std::iota(order.begin(), order.end(), 0);
  const auto heavier = [&](std::int64_t a, std::int64_t b) {
    const double x = weights[static_cast<std::size_t>(a)], y = weights[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  const std::int64_t kept = std::llround(density * static_cast<double>(blocks));
  std::nth_element(order.begin(), order.begin() + kept, order.end(), heavier);
  order.resize(static_cast<std::size_t>(kept));
  std::sort(order.begin(), order.end());

  Pattern pattern = sparse::open_pattern(grid.rows, grid.cols, "dense");
  auto next = order.begin();
  for (std::int64_t i = 0; i < grid.rows; ++i) {
    for (; next != order.end() && *next < (i + 1) * grid.cols; ++next) {
      pattern.indices.push_back(*next % grid.cols);
    }
    sparse::close_row(pattern);
  }
  return take_blocks(grid, pattern, index);
}

HostBsr bsr_from_dense(const Tensor& dense, const Pattern& pattern, std::int64_t block_rows,
                       std::int64_t block_cols, DType index) {
  validate(pattern);
  const Grid grid(dense, block_rows, block_cols);
  if (pattern.rows != grid.rows || pattern.cols != grid.cols) {
    refuse("pattern: expected " + std::to_string(grid.rows) + " x " + std::to_string(grid.cols) +
           " blocks to cover dense " + to_string(dense) + ", got " + std::to_string(pattern.rows) +
           " x " + std::to_string(pattern.cols));
  }
  return take_blocks(grid, pattern, index);
}

void bsr_to_dense(const BsrMatrix& matrix, const Tensor& dense) {
  const Pattern pattern = pattern_of(matrix);
  const Tensor& values = matrix.values;
  sparse::require_host(core::Where("bsr") / "values", values, 3);
  sparse::require_host(core::Where("dense"), dense, 2);
  core::check_no_alias(core::Where("dense"), dense);
  if (dense.dtype != values.dtype || dense.size(0) != matrix.rows || dense.size(1) != matrix.cols) {
    refuse("dense: expected " + std::string(to_string(values.dtype)) + "[" +
           std::to_string(matrix.rows) + ", " + std::to_string(matrix.cols) + "], got " +
           to_string(dense));
  }
  const std::int64_t bytes = size_of(dense.dtype), height = matrix.block_rows();
  const auto* from = static_cast<const std::byte*>(values.data);
  auto* to = static_cast<std::byte*>(dense.data);
  for (std::int64_t r = 0; r < matrix.rows; ++r) {
    std::byte* line = to + r * dense.stride(0) * bytes;
    sparse::copy_elements(line, dense.stride(1), nullptr, 0, matrix.cols, bytes);
    const auto row = static_cast<std::size_t>(r / height);
    for (std::int64_t p = pattern.offsets[row]; p < pattern.offsets[row + 1]; ++p) {
      const std::int64_t col = pattern.indices[static_cast<std::size_t>(p)] * matrix.block_cols();
      const std::int64_t source = p * values.stride(0) + (r % height) * values.stride(1);
      sparse::copy_elements(line + col * dense.stride(1) * bytes, dense.stride(1),
                            from + source * bytes, values.stride(2), matrix.block_cols(), bytes);
    }
  }
}

}  // namespace tessera
