#include "src/kernels/cpu/convert.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include <tessera/host_tensor.hpp>

#include "src/sparse/support.hpp"

namespace tessera::cpu {

using planning::BlockCopy;
using planning::BsrRow;
using planning::BsrView;

namespace {

/// Calls visit(batch, block row, block column, stored position) for every block.
template <class Visit>
void for_each_block(const BsrView& lists, std::int64_t batches, const Visit& visit) {
  for (std::int64_t b = 0; b < batches; ++b) {
    for (std::int64_t i = 0; i < lists.block_rows; ++i) {
      const BsrRow row = lists.row(b, i);
      for (std::int64_t e = row.begin; e < row.end; ++e)
        if (const std::int64_t j = row.column(e); j >= 0) visit(b, i, j, row.position(e));
    }
  }
}

/// Calls copy(line of the block in the dense matrix, the same line in the pool); offsets in bytes.
template <class Copy>
void for_each_line(const BlockCopy& c, const Copy& copy) {
  for_each_block(c.lists, c.batches,
                 [&](std::int64_t b, std::int64_t i, std::int64_t j, std::int64_t p) {
                   for (std::int64_t r = 0; r < c.block_rows; ++r) {
                     const std::int64_t bytes = size_of(c.dtype);
                     copy(static_cast<std::byte*>(c.dense.data) +
                              c.dense.at(b, i * c.block_rows + r, j * c.block_cols) * bytes,
                          static_cast<std::byte*>(c.pool.data) + c.pool.at(b, p, r, 0) * bytes);
                   }
                 });
}

}  // namespace

void to_dense(const BlockCopy& c) {
  const std::int64_t bytes = size_of(c.dtype);
  const std::int64_t rows = c.lists.block_rows * c.block_rows;
  const std::int64_t cols = c.lists.block_cols * c.block_cols;
  for (std::int64_t b = 0; b < c.batches; ++b) {
    for (std::int64_t r = 0; r < rows; ++r)
      sparse::copy_elements(static_cast<std::byte*>(c.dense.data) + c.dense.at(b, r, 0) * bytes,
                            c.dense.col, nullptr, 0, cols, bytes);
  }
  for_each_line(c, [&](std::byte* dense, const std::byte* pool) {
    sparse::copy_elements(dense, c.dense.col, pool, c.pool.col, c.block_cols, bytes);
  });
}

void gather_blocks(const BlockCopy& c) {
  for_each_line(c, [&](const std::byte* dense, std::byte* pool) {
    sparse::copy_elements(pool, c.pool.col, dense, c.dense.col, c.block_cols, size_of(c.dtype));
  });
}

void block_norms(const planning::NormsShape& s) {
  const auto norm_of = [&](std::int64_t b, std::int64_t i, std::int64_t j) {
    double sum = 0, largest = 0;
    for (std::int64_t r = i * s.block_rows; r < (i + 1) * s.block_rows; ++r) {
      for (std::int64_t c = j * s.block_cols; c < (j + 1) * s.block_cols; ++c) {
        const double x = load_as_float(s.dense.data, s.dtype, s.dense.at(b, r, c));
        sum += x * x;
        if (!(std::fabs(x) <= largest)) largest = std::isnan(largest) ? largest : std::fabs(x);
      }
    }
    const double norm = s.norm == BlockNorm::largest ? largest : sum;
    return std::isnan(norm) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(norm);
  };
  for (std::int64_t b = 0; b < s.batches; ++b)
    for (std::int64_t i = 0; i < s.rows; ++i)
      for (std::int64_t j = 0; j < s.cols; ++j)
        static_cast<float*>(s.norms.data)[s.norms.at(b, i, j)] = norm_of(b, i, j);
}

void select_blocks(const planning::SelectShape& s) {
  const auto key = [&](std::int64_t block) {
    const std::int64_t at = s.norms.at(0, block / s.cols, block % s.cols);
    return planning::norm_key(static_cast<const float*>(s.norms.data)[at]);
  };
  std::uint32_t cut = s.above;
  std::int64_t ties = 0;  // number of ties that are kept
  const std::int64_t blocks = s.rows * s.cols;
  if (s.by_count) {
    auto order = sparse::filled<std::int64_t>(blocks, 0, "norms");
    std::iota(order.begin(), order.end(), std::int64_t{0});
    if (s.keep == 0) {
      cut = std::numeric_limits<std::uint32_t>::max();
    } else if (s.keep <= blocks) {
      const auto last = order.begin() + (s.keep - 1);
      std::nth_element(order.begin(), last, order.end(),
                       [&](std::int64_t a, std::int64_t b) { return key(a) > key(b); });
      cut = key(*last);
      const auto larger =
          std::count_if(order.begin(), last + 1, [&](std::int64_t b) { return key(b) > cut; });
      ties = s.keep - larger;
    }
  }
  std::int64_t chosen = 0;
  const auto room = [&] { return std::min(chosen, s.capacity); };
  s.offsets.set(0, 0);
  for (std::int64_t i = 0; i < s.rows; ++i) {
    for (std::int64_t j = 0; j < s.cols; ++j) {
      const std::uint32_t own = key(i * s.cols + j);
      if (own < cut || (own == cut && ties-- <= 0)) continue;
      if (chosen < s.capacity) s.indices.set(chosen, j);
      ++chosen;
    }
    s.offsets.set(i + 1, room());
  }
  s.count.set(0, chosen);
}

}  // namespace tessera::cpu
