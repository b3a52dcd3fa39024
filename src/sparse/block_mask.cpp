#include <tessera/block_mask.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <tessera/pattern.hpp>

#include "src/core/check_lists.hpp"
#include "src/core/checked.hpp"
#include "src/sparse/support.hpp"

namespace tessera {
namespace {

using sparse::refuse;
using std::to_string;

// The mask of one batch and head.
BlockMask mask_of(const BlockMask& mask, std::int64_t batch, std::int64_t head) {
  BlockMask one = mask;
  const auto narrow = [](Tensor& tensor, int dim, std::int64_t index) {
    if (tensor.size(dim) == 1) return;
    tensor.data =
        static_cast<std::byte*>(tensor.data) + index * tensor.stride(dim) * size_of(tensor.dtype);
    tensor.shape[static_cast<std::size_t>(dim)] = 1;
  };
  for (Tensor* tensor :
       {&one.full.counts, &one.full.offsets, &one.full.indices, &one.partial.counts,
        &one.partial.offsets, &one.partial.indices, &one.bit_tile}) {
    if (!*tensor || tensor->rank < 3) continue;  // absent, or indices [total]
    narrow(*tensor, 0, batch);
    narrow(*tensor, 1, head);
  }
  return one;
}

std::int64_t rows_of(const BlockList& list) {
  return list.offsets ? list.offsets.size(2) - 1 : list.counts.size(2);
}

// Whether the mask has no list at all, so that no pair is visible.
bool hides_everything(const BlockMask& mask) {
  return !core::has_lists(mask) && !mask.bit_tile && !mask.bits;
}

void check_layout(const BlockMask& mask, std::int64_t q_length, std::int64_t kv_length) {
  const core::Where where("mask");
  if (hides_everything(mask)) {
    sparse::require_at_least(mask.block_q, 1, "mask: block_q");
    sparse::require_at_least(mask.block_kv, 1, "mask: block_kv");
    return;
  }
  const core::MaskSets sets = core::sets_of(mask);
  core::check_mask_layout(where, mask,
                          {.batch = sets.batch,
                           .heads = sets.heads,
                           .q_length = q_length,
                           .kv_length = kv_length,
                           .device = {}});
  core::check_pointers(where, mask);
}

}  // namespace

void validate(const BlockMask& mask, std::int64_t q_length, std::int64_t kv_length) {
  sparse::require_at_least(q_length, 0, "q_length");
  sparse::require_at_least(kv_length, 0, "kv_length");
  check_layout(mask, q_length, kv_length);
  if (hides_everything(mask)) return;
  core::check_mask_lists(core::Where("mask"), mask, {&q_length, 1}, kv_length);
}

Pattern pattern_of(const BlockMask& mask, std::int64_t kv_blocks, std::int64_t batch,
                   std::int64_t head) {
  if (kv_blocks < 0 || kv_blocks > core::kMaxKeyBlocks) {
    core::refuse(core::Where("kv_blocks"), "0 to 2^28", to_string(kv_blocks));
  }
  const std::int64_t kv_length = core::checked_multiply(kv_blocks, mask.block_kv, "kv_blocks");
  check_layout(mask, 0, kv_length);
  const core::MaskSets sets = core::sets_of(mask);
  const auto check = [](std::int64_t index, std::int64_t size, const char* argument) {
    // A mask that is shared by all batches or heads accepts any index.
    if (index < 0 || (size != 1 && index >= size)) {
      refuse(std::string(argument) + ": expected 0 to " + to_string(size - 1) + ", got " +
             to_string(index));
    }
  };
  check(batch, sets.batch, "batch");
  check(head, sets.heads, "head");
  if (hides_everything(mask)) return sparse::open_pattern(0, kv_blocks, "mask");
  const BlockMask one = mask_of(mask, batch, head);
  const std::int64_t rows = rows_of(one.full ? one.full : one.partial);
  const std::int64_t q_length = core::checked_multiply(rows, mask.block_q, "mask: block_q");
  core::check_mask_lists(core::Where("mask"), one, {&q_length, 1}, kv_length);

  Pattern pattern = sparse::open_pattern(rows, kv_blocks, "mask");
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto begin = static_cast<std::ptrdiff_t>(pattern.indices.size());
    for (const BlockList& list : {one.full, one.partial}) {
      if (!list) continue;
      const core::EntryRow entries = core::entries_of(list, list.indices, 0, 0, row);
      for (std::int64_t t = 0; t < entries.count; ++t) {
        pattern.indices.push_back(
            core::read_index(list.indices, entries.begin + t * entries.stride));
      }
    }
    std::sort(pattern.indices.begin() + begin, pattern.indices.end());
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
    refuse("patterns: expected 1, " + to_string(heads) + " (one per head) or " + to_string(all) +
           " (one per batch and head), got " + to_string(given));
  }
  std::int64_t capacity = 0;
  const Pattern& first = patterns.front();
  for (const Pattern& pattern : patterns) {
    validate(pattern);
    if (pattern.rows != first.rows || pattern.cols != first.cols) {
      refuse("patterns: expected " + to_string(first.rows) + " x " + to_string(first.cols) +
             " blocks, like the first, got " + to_string(pattern.rows) + " x " +
             to_string(pattern.cols));
    }
    for (std::size_t i = 0; i + 1 < pattern.offsets.size(); ++i) {
      capacity = std::max(capacity, pattern.offsets[i + 1] - pattern.offsets[i]);
    }
  }
  if (first.cols > std::numeric_limits<std::int32_t>::max()) {
    refuse("patterns: expected at most 2^31 - 1 columns, got " + to_string(first.cols));
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
