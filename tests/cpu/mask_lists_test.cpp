// Lists of block masks in host memory against brute force, and the arguments that are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/fixtures/mask_lists.hpp"
#include "tests/fixtures/refusals.hpp"

namespace tessera {
namespace {

using generate::Random;
using mask_lists::at;
using mask_lists::Case;
using mask_lists::get;
using testing::Arena;
using testing::refuses;

/// Checks that row (b, h, i) of the output is `expected` up to the capacity, and that nothing was
/// written after it. `list` is the indices, or a tensor of the same shape.
void check_row(const BlockList& out, const Tensor& list, std::int64_t b, std::int64_t h,
               std::int64_t i, const std::vector<std::int64_t>& expected) {
  const std::int64_t capacity = out.indices.size(3);
  const auto count = std::min(static_cast<std::int64_t>(expected.size()), capacity);
  ASSERT_EQ(get(out.counts, at(out.counts, b, h, i)), count);
  for (std::int64_t e = 0; e < capacity; ++e) {
    const std::int64_t want = e < count ? expected[static_cast<std::size_t>(e)] : -1;
    ASSERT_EQ(get(list, at(list, b, h, i, e)), want) << b << " " << h << " " << i << " " << e;
  }
}

/// Calls check(b, h, i) for each row of lists.
template <class Check>
void for_each_row(const BlockList& out, const Check& check) {
  for (std::int64_t b = 0; b < out.counts.size(0); ++b)
    for (std::int64_t h = 0; h < out.counts.size(1); ++h)
      for (std::int64_t i = 0; i < out.counts.size(2); ++i) check(b, h, i);
}

/// The columns for which `stays` is true.
template <class Stays>
std::vector<std::int64_t> columns_where(std::int64_t cols, const Stays& stays) {
  std::vector<std::int64_t> columns;
  for (std::int64_t j = 0; j < cols; ++j)
    if (stays(j)) columns.push_back(j);
  return columns;
}

void check_set_blocks(const Case& c) {
  const std::int64_t cols = c.full.size(3);
  for_each_row(c.set, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto is_set = [&](const Tensor& t, std::int64_t j) {
      return static_cast<const std::uint8_t*>(t.data)[at(t, b, h, i, j)] != 0;
    };
    const auto full = columns_where(cols, [&](std::int64_t j) { return is_set(c.full, j); });
    check_row(c.set, c.set.indices, b, h, i, full);
    check_row(c.full_set, c.full_set.indices, b, h, i, full);
    check_row(c.partial_set, c.partial_set.indices, b, h, i,
              columns_where(cols, [&](std::int64_t j) {
                return is_set(c.partial, j) && !is_set(c.full, j);
              }));
  });
}

void check_best(const Case& c) {
  for_each_row(c.best, [&](std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto score = [&](std::int64_t j) {
      return load_as_float(c.scores.data, c.scores.dtype, at(c.scores, b, h, i, j));
    };
    auto best = columns_where(c.scores.size(3), [&](std::int64_t j) {
      return !std::isnan(score(j)) && score(j) != -std::numeric_limits<float>::infinity();
    });
    std::stable_sort(best.begin(), best.end(),
                     [&](std::int64_t x, std::int64_t y) { return score(x) > score(y); });
    best.resize(std::min(best.size(), static_cast<std::size_t>(c.k)));
    std::sort(best.begin(), best.end());
    check_row(c.best, c.best.indices, b, h, i, best);
  });
}

/// The number of entries in row i of the stored lists, and the position of its first entry.
std::pair<std::int64_t, std::int64_t> stored_row(const BlockList& list, std::int64_t b,
                                                 std::int64_t h, std::int64_t i) {
  if (!list.offsets)
    return {get(list.counts, at(list.counts, b, h, i)), at(list.indices, b, h, i, 0)};
  const std::int64_t begin = get(list.offsets, at(list.offsets, b, h, i));
  return {get(list.offsets, at(list.offsets, b, h, i + 1)) - begin, begin};
}

void check_columns(const Case& c) {
  const Tensor& sizes = c.stored.offsets ? c.stored.offsets : c.stored.counts;
  const std::int64_t rows = sizes.size(2) - (c.stored.offsets ? 1 : 0);
  const std::int64_t stride = c.stored.indices.stride(c.stored.indices.rank - 1);
  for_each_row(c.columns.lists, [&](std::int64_t b, std::int64_t h, std::int64_t j) {
    std::vector<std::int64_t> found, entries;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto [size, begin] = stored_row(c.stored, b, h, i);
      for (std::int64_t e = 0; e < size; ++e) {
        if (get(c.stored.indices, begin + e * stride) != j) continue;
        found.push_back(i);
        entries.push_back(e);
      }
    }
    check_row(c.columns.lists, c.columns.lists.indices, b, h, j, found);
    if (c.columns.entries) check_row(c.columns.lists, c.columns.entries, b, h, j, entries);
  });
}

TEST(MaskLists, MatchBruteForce) {
  Random random(91);
  for (int round = 0; round < 250; ++round) {
    const Arena arena;
    const Case c = mask_lists::Maker(random, arena).make();
    SCOPED_TRACE(c.text);
    mask_lists::convert(c);
    check_set_blocks(c);
    check_best(c);
    check_columns(c);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(MaskLists, TransposedTwiceAreTheSameBlocks) {
  const Pattern pattern = patterns::random(9, 14, 0.4, 5);
  const HostBlockMask mask = make_block_mask(pattern, 16, 16);
  HostTensor counts(DType::i32, {1, 1, 14}), rows(DType::i32, {1, 1, 14, 9});
  HostTensor back_counts(DType::i32, {1, 1, 9}), back(DType::i32, {1, 1, 9, 14});
  transpose_lists({.counts = mask.full_counts, .offsets = {}, .indices = mask.full_indices},
                  {.lists = {counts, {}, rows}, .entries = {}});
  transpose_lists({.counts = counts, .offsets = {}, .indices = rows},
                  {.lists = {back_counts, {}, back}, .entries = {}});
  BlockMask twice{.block_q = 16, .block_kv = 16, .full = {back_counts, {}, back}};
  EXPECT_EQ(pattern_of(twice, 14), pattern);
}

/// Small masks and the outputs of their conversions; each test makes one argument invalid.
struct Base {
  HostTensor flags{DType::u8, {2, 1, 3, 4}}, others{DType::u8, {2, 1, 3, 4}};
  HostTensor numbers{DType::f32, {2, 1, 3, 4}};
  HostTensor memory[9] = {HostTensor(DType::i32, {2, 1, 3}),   HostTensor(DType::i32, {2, 1, 3, 4}),
                          HostTensor(DType::i32, {2, 1, 3}),   HostTensor(DType::i32, {2, 1, 3, 4}),
                          HostTensor(DType::i32, {2, 1, 3}),   HostTensor(DType::i32, {2, 1, 3, 4}),
                          HostTensor(DType::i32, {2, 1, 4}),   HostTensor(DType::i32, {2, 1, 4, 3}),
                          HostTensor(DType::i32, {2, 1, 4, 3})};
  Tensor full = flags.view(), partial = others.view(), scores = numbers.view();
  std::int64_t k = 2;
  BlockList out{memory[0], {}, memory[1]}, rest{memory[2], {}, memory[3]};
  BlockList stored{memory[4], {}, memory[5]};
  BlockColumns columns{{memory[6], {}, memory[7]}, memory[8]};

  void run() {
    list_blocks(full, out);
    list_blocks(full, partial, out, rest);
    top_k_blocks(scores, k, out);
    transpose_lists(stored, columns);
  }
};

TEST(MaskLists, TheBaseRuns) { EXPECT_NO_THROW(Base().run()); }

TEST(MaskLists, RefusalsNameTheArgument) {
  refuses<Base>("list_blocks: blocks: expected dtype u8",
                [](Base& b) { b.full.dtype = DType::i32; });
  refuses<Base>("list_blocks: blocks: expected shape", [](Base& b) { b.full.rank = 3; });
  refuses<Base>("list_blocks: blocks: expected data", [](Base& b) { b.full.data = nullptr; });
  refuses<Base>("list_blocks: blocks: expected a tensor, got none", [](Base& b) { b.full = {}; });
  refuses<Base>("list_blocks: partial: expected shape", [](Base& b) { b.partial.shape[3] = 3; });
  refuses<Base>("list_blocks: out.counts: expected shape",
                [](Base& b) { b.out.counts.shape[2] = 2; });
  refuses<Base>("list_blocks: out: expected counts and indices, got offsets",
                [](Base& b) { b.out.offsets = b.out.counts; });
  refuses<Base>("list_blocks: out.indices: expected contiguous",
                [](Base& b) { b.out.indices.strides[3] = 2; });
  refuses<Base>("list_blocks: out.indices: expected dtype i32 as counts has",
                [](Base& b) { b.out.indices.dtype = DType::i64; });
  refuses<Base>("list_blocks: partial_out.indices: expected shape",
                [](Base& b) { b.rest.indices.shape[1] = 2; });
  refuses<Base>("top_k_blocks: scores: expected dtype",
                [](Base& b) { b.scores.dtype = DType::i32; });
  refuses<Base>("top_k_blocks: k: expected zero or more blocks, got -1", [](Base& b) { b.k = -1; });
  refuses<Base>("top_k_blocks: out.indices: expected a capacity of at least 4", [](Base& b) {
    b.k = 5;
    b.out.indices = tensor(b.out.indices.data, DType::i32, {2, 1, 3, 3});
    b.rest.indices = tensor(b.rest.indices.data, DType::i32, {2, 1, 3, 3});
  });
  refuses<Base>("transpose_lists: list.counts: expected counts 0 to 4",
                [](Base& b) { b.memory[4].data<std::int32_t>()[1] = 5; });
  refuses<Base>("transpose_lists: list.indices: expected key blocks in [0, 4), got 9 in row 2",
                [](Base& b) {
                  b.memory[4].data<std::int32_t>()[2] = 1;
                  b.memory[5].data<std::int32_t>()[8] = 9;
                });
  refuses<Base>("transpose_lists: list.indices: expected key blocks that are unique",
                [](Base& b) { b.memory[4].data<std::int32_t>()[0] = 2; });
  refuses<Base>("transpose_lists: list: expected either counts or offsets, got both",
                [](Base& b) { b.stored.offsets = b.stored.counts; });
  refuses<Base>("transpose_lists: list.indices: expected a tensor, got none",
                [](Base& b) { b.stored.indices = {}; });
  refuses<Base>("transpose_lists: list.counts: expected shape", [](Base& b) {
    b.stored.counts = tensor(b.stored.counts.data, DType::i32, {3, 1, 2});
  });
  refuses<Base>("transpose_lists: out.lists.counts: expected a tensor, got none",
                [](Base& b) { b.columns.lists.counts = {}; });
  refuses<Base>("transpose_lists: out.lists.indices: expected shape",
                [](Base& b) { b.columns.lists.indices.shape[2] = 3; });
  refuses<Base>("transpose_lists: out.entries: expected shape",
                [](Base& b) { b.columns.entries.shape[3] = 2; });
}

}  // namespace
}  // namespace tessera
