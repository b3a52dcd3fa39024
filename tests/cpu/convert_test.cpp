// Conversions in host memory against brute force, and the arguments that they refuse.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/fixtures/conversions.hpp"
#include "tests/fixtures/refusals.hpp"

namespace tessera {
namespace {

using conversions::Case;
using conversions::get;
using generate::Random;
using testing::Arena;
using testing::error_text;
using testing::refuses;

/// Element (b, i, j) of a matrix with or without a batch. NaN becomes a number, so that it compares
/// equal.
double element(const Tensor& t, std::int64_t b, std::int64_t i, std::int64_t j) {
  const std::int64_t batch = t.rank == 3 && t.size(0) > 1 ? b * t.stride(0) : 0;
  const double x =
      load_as_float(t.data, t.dtype, batch + i * t.stride(t.rank - 2) + j * t.stride(t.rank - 1));
  return std::isnan(x) ? 1e30 : x;
}
double value(const BsrMatrix& m, std::int64_t b, std::int64_t p, std::int64_t r, std::int64_t c) {
  const Tensor& v = m.values;
  const std::int64_t batch = v.rank == 4 ? b * v.stride(0) : 0;
  const double x = load_as_float(v.data, v.dtype,
                                 batch + p * v.stride(v.rank - 3) + r * v.stride(v.rank - 2) + c);
  return std::isnan(x) ? 1e30 : x;
}

/// The position of block (i, j) of matrix b, or -1.
std::int64_t find(const Case& c, std::int64_t b, std::int64_t i, std::int64_t j) {
  const Tensor &offsets = c.matrix.row_offsets, &columns = c.matrix.col_indices;
  const std::int64_t first = (offsets.rank == 2 ? b * (c.rows + 1) : 0) + i;
  const std::int64_t base = columns.rank == 2 ? b * columns.size(1) : 0;
  for (std::int64_t p = get(offsets, first); p < get(offsets, first + 1); ++p)
    if (get(columns, base + p) == j) return p;
  return -1;
}

void check_blocks(const Case& c) {
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t i = 0; i < c.rows; ++i) {
      for (std::int64_t j = 0; j < c.cols; ++j) {
        const std::int64_t p = find(c, b, i, j);
        double largest = 0, squares = 0;
        for (std::int64_t r = 0; r < c.block_rows; ++r) {
          for (std::int64_t w = 0; w < c.block_cols; ++w) {
            const std::int64_t row = i * c.block_rows + r, col = j * c.block_cols + w;
            const double x = element(c.dense, b, row, col);
            ASSERT_EQ(element(c.scattered, b, row, col), p < 0 ? 0.0 : value(c.matrix, b, p, r, w));
            if (p >= 0) {
              ASSERT_EQ(value(c.gathered, b, p, r, w), x);
            }
            largest = std::max(largest, std::fabs(x));
            squares += x * x;
          }
        }
        const bool nan = largest == 1e30;
        ASSERT_EQ(element(c.largest, b, i, j), largest);
        ASSERT_EQ(element(c.squares, b, i, j), nan ? 1e30 : squares);
      }
    }
  }
}

/// Compares the selected lists with a selection by sorting.
void check_selection(const Case& c) {
  struct Block {
    float score;
    std::int64_t row, col;
  };
  std::vector<Block> blocks;
  for (std::int64_t i = 0; i < c.rows; ++i)
    for (std::int64_t j = 0; j < c.cols; ++j)
      blocks.push_back({static_cast<const float*>(
                            c.scores.data)[i * c.scores.stride(0) + j * c.scores.stride(1)],
                        i, j});
  const auto larger = [](const Block& a, const Block& b) {
    if (std::isnan(a.score) || std::isnan(b.score))
      return std::isnan(a.score) > std::isnan(b.score);
    return a.score > b.score;
  };
  if (c.choice.keep) {
    std::stable_sort(blocks.begin(), blocks.end(), larger);
    blocks.resize(std::min(blocks.size(), static_cast<std::size_t>(*c.choice.keep)));
  } else {
    std::erase_if(blocks, [&](const Block& b) { return b.score <= *c.choice.above; });
  }
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
    return a.row != b.row ? a.row < b.row : a.col < b.col;
  });
  ASSERT_EQ(get(c.selected.count, 0), static_cast<std::int64_t>(blocks.size()));
  const std::int64_t capacity = c.selected.col_indices.size(0);
  blocks.resize(std::min(blocks.size(), static_cast<std::size_t>(capacity)));
  std::size_t at = 0;
  for (std::int64_t i = 0; i < c.rows; ++i) {
    ASSERT_EQ(get(c.selected.row_offsets, i), static_cast<std::int64_t>(at));
    for (; at < blocks.size() && blocks[at].row == i; ++at)
      ASSERT_EQ(get(c.selected.col_indices, static_cast<std::int64_t>(at)), blocks[at].col);
  }
  ASSERT_EQ(get(c.selected.row_offsets, c.rows), static_cast<std::int64_t>(blocks.size()));
  for (std::int64_t e = static_cast<std::int64_t>(at); e < capacity; ++e)
    ASSERT_EQ(get(c.selected.col_indices, e), -1);
}

void check_columns(const Case& c) {
  const bool batched = c.columns.col_offsets.rank == 2;
  const std::int64_t stored = c.matrix.stored_blocks();
  for (std::int64_t b = 0; b < (batched ? c.batch : 1); ++b) {
    std::int64_t at = 0;
    for (std::int64_t j = 0; j < c.cols; ++j) {
      ASSERT_EQ(get(c.columns.col_offsets, b * (c.cols + 1) + j), at);
      for (std::int64_t i = 0; i < c.rows; ++i) {
        const std::int64_t p = find(c, b, i, j);
        if (p < 0) continue;
        ASSERT_EQ(get(c.columns.row_indices, b * stored + at), i);
        ASSERT_EQ(get(c.columns.positions, b * stored + at), p);
        ++at;
      }
    }
    ASSERT_EQ(get(c.columns.col_offsets, b * (c.cols + 1) + c.cols), at);
  }
}

TEST(Convert, MatchesBruteForce) {
  Random random(71);
  for (int round = 0; round < 250; ++round) {
    const Arena arena;
    const Case c = conversions::make(random, arena);
    SCOPED_TRACE(c.text);
    conversions::convert(c);
    check_blocks(c);
    check_selection(c);
    check_columns(c);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(Convert, KeepsTheSameBlocksAsTheHostFunctions) {
  Random random(72);
  HostTensor dense(DType::f32, {96, 64}), norms(DType::f32, {6, 4});
  for (std::int64_t i = 0; i < dense.numel(); ++i)
    dense.data<float>()[i] = static_cast<float>(random.normal());
  const HostBsr expected = bsr_keep_densest(dense.view(), 16, 16, 0.25);
  HostBsr got = make_bsr(pattern_of(expected.view()), 16, 16, DType::f32);
  HostTensor count(DType::i32, {1});
  block_norms(dense, BlockNorm::sum_of_squares, norms);
  select_blocks(norms, {.keep = 6}, {got.row_offsets, got.col_indices, count});
  gather_blocks(dense, got.view());
  EXPECT_EQ(pattern_of(got.view()), pattern_of(expected.view()));
  for (std::int64_t i = 0; i < got.values.numel(); ++i)
    ASSERT_EQ(got.values.data<float>()[i], expected.values.data<float>()[i]);
}

/// A small matrix and the outputs of its conversions; each test makes one argument invalid.
struct Base {
  HostBsr bsr = make_bsr(patterns::banded(3, 2, 1), 4, 2, DType::f32);
  BsrMatrix matrix = bsr.view();
  HostTensor dense_memory{DType::f32, {12, 4}}, norms_memory{DType::f32, {3, 2}};
  HostTensor offsets{DType::i32, {4}}, indices{DType::i32, {5}}, count{DType::i32, {1}};
  HostTensor ends{DType::i32, {3}}, rows{DType::i32, {matrix.stored_blocks()}},
      positions{DType::i32, {matrix.stored_blocks()}};
  Tensor dense = dense_memory.view(), norms = norms_memory.view();
  BlockChoice choice{.keep = 2};
  SelectedBlocks selected{offsets, indices, count};
  ColumnLists columns{ends, rows, positions};

  void run() {
    to_dense(matrix, dense);
    gather_blocks(dense, matrix);
    block_norms(dense, BlockNorm::largest, norms);
    select_blocks(norms, choice, selected);
    transpose_lists(matrix, columns);
  }
};

TEST(Convert, TheBaseRuns) { EXPECT_NO_THROW(Base().run()); }

TEST(Convert, RefusalsNameTheArgument) {
  refuses<Base>("to_dense: dense: expected shape", [](Base& b) { b.dense.shape[0] = 8; });
  refuses<Base>("to_dense: dense: expected dtype f32", [](Base& b) { b.dense.dtype = DType::f16; });
  refuses<Base>("to_dense: dense: expected strides", [](Base& b) { b.dense.strides[0] = 0; });
  refuses<Base>("to_dense: dense: expected data", [](Base& b) { b.dense.data = nullptr; });
  refuses<Base>("to_dense: matrix.values: expected dtype",
                [](Base& b) { b.matrix.values.dtype = DType::i32; });
  refuses<Base>("to_dense: matrix.rows", [](Base& b) { b.matrix.rows = 11; });
  refuses<Base>("to_dense: matrix.col_indices: expected block columns",
                [](Base& b) { b.bsr.col_indices.data<std::int32_t>()[0] = 2; });
  refuses<Base>("block_norms: norms: expected dtype f32",
                [](Base& b) { b.norms.dtype = DType::i32; });
  refuses<Base>("block_norms: norms: expected numbers of blocks that divide",
                [](Base& b) { b.norms.shape[0] = 5; });
  refuses<Base>("block_norms: norms: expected strides", [](Base& b) { b.norms.strides[1] = 0; });
  refuses<Base>("select_blocks: choice: expected either above or keep, got both",
                [](Base& b) { b.choice.above = 1.0f; });
  refuses<Base>("select_blocks: choice: expected either above or keep, got neither",
                [](Base& b) { b.choice = {}; });
  refuses<Base>("select_blocks: choice.above: expected a number, got NaN",
                [](Base& b) { b.choice = {.above = std::nanf("")}; });
  refuses<Base>("select_blocks: choice.keep", [](Base& b) { b.choice.keep = -1; });
  refuses<Base>("select_blocks: out.row_offsets",
                [](Base& b) { b.selected.row_offsets.shape[0] = 3; });
  refuses<Base>("select_blocks: out.col_indices: expected contiguous",
                [](Base& b) { b.selected.col_indices.strides[0] = 2; });
  refuses<Base>("select_blocks: out.count", [](Base& b) { b.selected.count.dtype = DType::i64; });
  refuses<Base>("transpose_lists: out.col_offsets",
                [](Base& b) { b.columns.col_offsets.shape[0] = 4; });
  refuses<Base>("transpose_lists: out.positions: expected a tensor, got none",
                [](Base& b) { b.columns.positions = {}; });
  refuses<Base>("transpose_lists: out.row_indices: expected data",
                [](Base& b) { b.columns.row_indices.data = nullptr; });
  Base base;
  base.matrix.values =
      tensor(base.matrix.values.data, DType::f32, {base.matrix.stored_blocks(), 4, 2}, {0, 2, 1});
  EXPECT_PRED2(testing::contains, error_text([&] { gather_blocks(base.dense, base.matrix); }),
               "gather_blocks: out.values: expected strides");
}

TEST(Convert, NeedsNoWorkspaceInHostMemory) {
  const Base base;
  EXPECT_EQ(select_blocks_workspace(base.norms), 0);
  EXPECT_EQ(transpose_lists_workspace(base.matrix), 0);
}

}  // namespace
}  // namespace tessera
