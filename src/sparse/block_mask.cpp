#include <tessera/block_mask.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <tessera/pattern.hpp>

#include "src/core/checked.hpp"
#include "src/sparse/block_list.hpp"
#include "src/sparse/support.hpp"

namespace tessera {
namespace {

using sparse::refuse;
using std::to_string;

void check_rows(const sparse::BlockLists& lists, std::int64_t rows, std::int64_t q_length) {
  if (lists.present() && lists.rows() < rows) {
    refuse(lists.name() + ": expected " + to_string(rows) + " rows or more for a query length of " +
           to_string(q_length) + ", got " + to_string(lists.rows()));
  }
}

// The blocks of one row, sorted; throws where one comes twice.
std::vector<std::int64_t> sorted_row(const sparse::BlockLists& lists, std::int64_t b,
                                     std::int64_t h, std::int64_t row, std::int64_t kv_blocks) {
  std::vector<std::int64_t> blocks = lists.row(b, h, row, kv_blocks);
  if (!std::is_sorted(blocks.begin(), blocks.end())) std::sort(blocks.begin(), blocks.end());
  const auto twice = std::adjacent_find(blocks.begin(), blocks.end());
  if (twice != blocks.end()) {
    refuse(lists.place("indices", b, h, row) + ": expected unique key blocks, got " +
           to_string(*twice) + " twice");
  }
  return blocks;
}

// Full and partial together, sorted; throws where a block is in both.
std::vector<std::int64_t> merged_row(const sparse::MaskLists& lists, std::int64_t b, std::int64_t h,
                                     std::int64_t row, std::int64_t kv_blocks) {
  const std::vector<std::int64_t> full = sorted_row(lists.full, b, h, row, kv_blocks);
  const std::vector<std::int64_t> partial = sorted_row(lists.partial, b, h, row, kv_blocks);
  std::vector<std::int64_t> both(full.size() + partial.size());
  std::merge(full.begin(), full.end(), partial.begin(), partial.end(), both.begin());
  const auto shared = std::adjacent_find(both.begin(), both.end());
  if (shared != both.end()) {
    refuse(lists.partial.place("indices", b, h, row) + ": key block " + to_string(*shared) +
           " is in the full list too");
  }
  return both;
}

void check_tiles(const BlockMask& mask, const sparse::BlockLists& partial, std::int64_t b,
                 std::int64_t h, std::int64_t row) {
  const std::int64_t count = partial.count(b, h, row), tiles = mask.bits.size(0);
  for (std::int64_t t = 0; t < count; ++t) {
    const std::int64_t tile = partial.entry(mask.bit_tile, b, h, row, t);
    if (tile < 0 || tile >= tiles) {
      refuse("mask: bit_tile: row " + to_string(row) + " of batch " + to_string(b) + ", head " +
             to_string(h) + " uses tile " + to_string(tile) + ", expected one below the " +
             to_string(tiles) + " of bits");
    }
  }
}

}  // namespace

void validate(const BlockMask& mask, std::int64_t q_length, std::int64_t kv_length) {
  const sparse::MaskLists lists(mask);
  sparse::require_at_least(q_length, 0, "q_length");
  sparse::require_at_least(kv_length, 0, "kv_length");
  const std::int64_t rows = sparse::blocks_of(q_length, mask.block_q);
  const std::int64_t kv_blocks = sparse::blocks_of(kv_length, mask.block_kv);
  check_rows(lists.full, rows, q_length);
  check_rows(lists.partial, rows, q_length);
  if (!lists.full.present() && !lists.partial.present()) return;
  for (std::int64_t b = 0; b < lists.batch; ++b) {
    for (std::int64_t h = 0; h < lists.heads; ++h) {
      for (std::int64_t row = 0; row < rows; ++row) {
        merged_row(lists, b, h, row, kv_blocks);
        if (mask.bits) check_tiles(mask, lists.partial, b, h, row);
      }
    }
  }
}

Pattern pattern_of(const BlockMask& mask, std::int64_t kv_blocks, std::int64_t batch,
                   std::int64_t head) {
  const sparse::MaskLists lists(mask);
  sparse::require_at_least(kv_blocks, 0, "kv_blocks");
  const auto check = [](std::int64_t index, std::int64_t size, const char* argument) {
    // A mask that is the same for all answers for any of them.
    if (index < 0 || (size != 1 && index >= size)) {
      refuse(std::string(argument) + ": expected 0 to " + to_string(size - 1) + ", got " +
             to_string(index));
    }
  };
  check(batch, lists.batch, "batch");
  check(head, lists.heads, "head");
  const std::int64_t rows = lists.full.present() ? lists.full.rows() : lists.partial.rows();
  if (lists.full.present() && lists.partial.present() && lists.partial.rows() != rows) {
    refuse(lists.partial.name() + ": expected " + to_string(rows) + " rows as in full, got " +
           to_string(lists.partial.rows()));
  }
  Pattern pattern = sparse::open_pattern(rows, kv_blocks, "mask");
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::vector<std::int64_t> blocks = merged_row(lists, batch, head, row, kv_blocks);
    pattern.indices.insert(pattern.indices.end(), blocks.begin(), blocks.end());
    sparse::close_row(pattern);
  }
  return pattern;
}

BlockMask HostBlockMask::view() const {
  BlockMask mask;
  mask.block_q = block_q;
  mask.block_kv = block_kv;
  mask.full = {full_counts, {}, full_indices};
  mask.partial = {partial_counts, {}, partial_indices};
  mask.bit_tile = bit_tile;
  mask.bits = bits;
  return mask;
}

HostBlockMask make_block_mask(const std::vector<Pattern>& patterns, std::int64_t batch,
                              std::int64_t heads, std::int64_t block_q, std::int64_t block_kv) {
  sparse::require_at_least(batch, 0, "batch");
  sparse::require_at_least(heads, 0, "heads");
  sparse::require_at_least(block_q, 1, "block_q");
  sparse::require_at_least(block_kv, 1, "block_kv");
  const auto given = static_cast<std::int64_t>(patterns.size());
  const std::int64_t all = core::checked_multiply(batch, heads, "batch");
  if (given == 0 || (given != 1 && given != heads && given != all)) {
    refuse("patterns: expected 1, one for each of " + to_string(heads) + " heads, or " +
           to_string(all) + " in all, got " + to_string(given));
  }
  std::int64_t capacity = 0;
  const Pattern& first = patterns.front();
  for (const Pattern& pattern : patterns) {
    validate(pattern);
    if (pattern.rows != first.rows || pattern.cols != first.cols) {
      refuse("patterns: expected all of " + to_string(first.rows) + " x " + to_string(first.cols) +
             " blocks, got " + to_string(pattern.rows) + " x " + to_string(pattern.cols));
    }
    for (std::size_t i = 0; i + 1 < pattern.offsets.size(); ++i) {
      capacity = std::max(capacity, pattern.offsets[i + 1] - pattern.offsets[i]);
    }
  }
  if (first.cols > std::numeric_limits<std::int32_t>::max()) {
    refuse("patterns: expected columns that fit i32, got " + to_string(first.cols));
  }
  HostBlockMask mask;
  mask.block_q = block_q;
  mask.block_kv = block_kv;
  const std::int64_t list_heads = given == 1 ? 1 : heads;
  const std::int64_t list_batch = given / list_heads;
  mask.full_counts = HostTensor(DType::i32, {list_batch, list_heads, first.rows});
  mask.full_indices = HostTensor(DType::i32, {list_batch, list_heads, first.rows, capacity});
  auto* counts = mask.full_counts.data<std::int32_t>();
  auto* indices = mask.full_indices.data<std::int32_t>();
  for (const Pattern& pattern : patterns) {
    for (std::size_t i = 0; i + 1 < pattern.offsets.size(); ++i) {
      *counts++ = static_cast<std::int32_t>(pattern.offsets[i + 1] - pattern.offsets[i]);
      std::transform(pattern.indices.begin() + pattern.offsets[i],
                     pattern.indices.begin() + pattern.offsets[i + 1], indices,
                     [](std::int64_t col) { return static_cast<std::int32_t>(col); });
      indices += capacity;
    }
  }
  return mask;
}

}  // namespace tessera
