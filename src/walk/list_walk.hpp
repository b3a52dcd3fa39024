#pragma once

#include <cstdint>

#include "src/walk/walk.hpp"

// Walks over stored lists: block masks, BSR rows, pages. Lists in GPU memory are not checked, so
// all accessors are safe for any contents: counts are clamped to the capacity, and indices out of
// range are skipped. No contents cause an access outside of the tensors.
namespace tessera::planning {

TESSERA_HD constexpr std::int64_t clamp_to(std::int64_t value, std::int64_t low,
                                           std::int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/// An array of i32 or i64 for reading: one of the two pointers is set, or none if it is absent.
struct Indices {
  const std::int32_t* narrow = nullptr;
  const std::int64_t* wide = nullptr;

  TESSERA_HD constexpr explicit operator bool() const { return narrow || wide; }
  TESSERA_HD constexpr std::int64_t operator[](std::int64_t element) const {
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): one of the two is set
    return wide ? wide[element] : narrow[element];
  }
};

/// The same for writing.
struct IndexSink {
  std::int32_t* narrow = nullptr;
  std::int64_t* wide = nullptr;

  TESSERA_HD constexpr explicit operator bool() const { return narrow || wide; }
  TESSERA_HD constexpr operator Indices() const { return {narrow, wide}; }  // NOLINT: meant to
  TESSERA_HD constexpr void set(std::int64_t element, std::int64_t value) const {
    if (wide)
      wide[element] = value;
    else
      // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): one of the two is set
      narrow[element] = static_cast<std::int32_t>(value);
  }
};

/// Strides of a list tensor, in elements; 0 in a broadcast dimension.
struct ListStrides {
  std::int64_t batch = 0, head = 0, row = 0, entry = 0;
  TESSERA_HD constexpr std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t r) const {
    return b * batch + h * head + r * row;
  }
};

/// One row of a list: `size` entries with a stride of `stride` elements.
struct ListRow {
  Indices indices;
  std::int64_t base = 0, stride = 1;
  std::int64_t size = 0;

  TESSERA_HD constexpr std::int64_t operator[](std::int64_t entry) const {
    return indices[base + entry * stride];
  }
};

/// A BlockList in either form. With counts, `extent` is the capacity of a row. With offsets
/// (`by_offsets`), `sizes` has rows + 1 entries: positions in one array of `extent` indices.
struct ListView {
  Indices sizes, indices;
  ListStrides size_strides, index_strides;
  bool by_offsets = false;
  std::int64_t rows = 0, extent = 0;

  /// Row r of a batch and head; empty if the row or the list does not exist.
  TESSERA_HD constexpr ListRow row(std::int64_t b, std::int64_t h, std::int64_t r) const {
    return row_of(indices, index_strides, b, h, r);
  }
  /// The same row of another tensor with the shape of the indices, such as the bit tiles.
  TESSERA_HD constexpr ListRow row_of(const Indices& values, const ListStrides& strides,
                                      std::int64_t b, std::int64_t h, std::int64_t r) const {
    if (!values || !sizes || r < 0 || r >= rows) return {};
    const std::int64_t first = size_strides.at(b, h, r);
    if (!by_offsets) {
      return {values, strides.at(b, h, r), strides.entry, clamp_to(sizes[first], 0, extent)};
    }
    const std::int64_t begin = clamp_to(sizes[first], 0, extent);
    const std::int64_t end = clamp_to(sizes[first + size_strides.row], begin, extent);
    return {values, begin * strides.entry, strides.entry, end - begin};
  }
};

/// A BlockMask as kernels read it.
struct MaskView {
  ListView full, partial;
  Indices bit_tile;  // absent: partial blocks have no element mask
  ListStrides bit_tile_strides;
  std::int64_t bit_tiles = 0;  // number of tiles
  std::int64_t block_q = 0, block_kv = 0;
  std::int64_t kv_blocks = 0;  // of the longest sequence
  std::int64_t group = 1;      // heads that share a set of lists
};

/// The walk of rows [first_row, last_row], which are inside one block row of the mask: full blocks,
/// then partial blocks, each in the order of its list.
class MaskWalk {
 public:
  TESSERA_HD constexpr MaskWalk(const MaskView& mask, const Visibility& sight, std::int64_t batch,
                                std::int64_t head, std::int64_t first_row, std::int64_t last_row)
      : sight_(sight),
        first_row_(first_row),
        last_row_(last_row),
        block_kv_(mask.block_kv),
        kv_blocks_(mask.kv_blocks),
        bit_tiles_(mask.bit_tiles) {
    const std::int64_t row = first_row / mask.block_q, set = head / mask.group;
    full_ = mask.full.row(batch, set, row);
    partial_ = mask.partial.row(batch, set, row);
    tiles_ = mask.partial.row_of(mask.bit_tile, mask.bit_tile_strides, batch, set, row);
  }

  TESSERA_HD constexpr std::int64_t entries() const { return full_.size + partial_.size; }

  /// The step of one entry; its count is 0 if the rows see no key of the block.
  TESSERA_HD constexpr KeyStep entry(std::int64_t index) const {
    const std::int64_t in_partial = index - full_.size;
    const std::int64_t block = in_partial < 0 ? full_[index] : partial_[in_partial];
    if (block < 0 || block >= kv_blocks_) return {};
    const std::int64_t begin = block * block_kv_;
    KeyStep step = clip_step(sight_, first_row_, last_row_, {begin, begin + block_kv_});
    if (in_partial >= 0 && tiles_.indices) {
      step.bit_tile = tiles_[in_partial];
      if (step.bit_tile < 0 || step.bit_tile >= bit_tiles_) return {};
    }
    return step;
  }

  /// Stores the next step that has keys in `step`; returns false after the last one.
  TESSERA_HD constexpr bool next(KeyStep& step) {
    while (at_ < entries()) {
      step = entry(at_++);
      if (step.count > 0) return true;
    }
    return false;
  }

 private:
  Visibility sight_;
  std::int64_t first_row_, last_row_, block_kv_, kv_blocks_, bit_tiles_;
  ListRow full_, partial_, tiles_;
  std::int64_t at_ = 0;
};

/// The page table of paged sequences.
struct PageView {
  const std::int32_t* table = nullptr;
  std::int64_t batch_stride = 0, entry_stride = 1;
  std::int64_t max_pages = 0;             // entries per sequence
  std::int64_t pages = 0, page_size = 0;  // pages in the pool; keys per page

  /// Contiguous keys within one page; `page` is -1 if the table has no valid page for them.
  struct Run {
    std::int64_t page = -1, slot = 0, count = 0;
  };
  /// The run from `key`, which is not negative, to `end` or the end of the page.
  TESSERA_HD constexpr Run run(std::int64_t batch, std::int64_t key, std::int64_t end) const {
    const PagePlace place = page_place(key, page_size);
    const std::int64_t left = end - key, rest = page_size - place.slot;
    const std::int64_t count = left < rest ? left : rest;
    if (place.page >= max_pages) return {-1, place.slot, count};
    const std::int64_t page = table[batch * batch_stride + place.page * entry_stride];
    return {page >= 0 && page < pages ? page : -1, place.slot, count};
  }
};

/// The stored blocks of one block row (with transposed lists: of one block column): entries [begin,
/// end) of the indices. Without `positions`, entry p is stored block p.
struct BsrRow {
  Indices indices;
  std::int64_t base = 0, stride = 1;
  std::int64_t begin = 0, end = 0;
  std::int64_t limit = 0;  // valid indices are below it
  Indices positions{};     // transposed lists only
  std::int64_t position_base = 0;
  std::int64_t stored = 0;  // valid positions are below it

  TESSERA_HD constexpr std::int64_t size() const { return end - begin; }
  /// The block column of an entry (with transposed lists: its block row); -1 if it is out of range.
  TESSERA_HD constexpr std::int64_t column(std::int64_t entry) const {
    const std::int64_t c = indices[base + entry * stride];
    return c >= 0 && c < limit ? c : -1;
  }
  /// The position of an entry's block in the values; -1 if it is out of range.
  TESSERA_HD constexpr std::int64_t position(std::int64_t entry) const {
    if (!positions) return entry;
    const std::int64_t p = positions[position_base + entry];
    return p >= 0 && p < stored ? p : -1;
  }
};

/// The lists of a BsrMatrix as kernels read them: as stored, by row, or transposed. Transposed
/// lists have `positions`, and their rows are the block columns of the matrix.
struct BsrView {
  Indices offsets, indices;
  std::int64_t offset_batch = 0, offset_stride = 1;  // batch strides are 0 if shared
  std::int64_t index_batch = 0, index_stride = 1;
  std::int64_t block_rows = 0, block_cols = 0;  // numbers of block rows and block columns
  std::int64_t stored = 0;
  Indices positions{};
  std::int64_t position_batch = 0;

  TESSERA_HD constexpr BsrRow row(std::int64_t batch, std::int64_t r) const {
    if (r < 0 || r >= block_rows) return {};
    const std::int64_t first = batch * offset_batch + r * offset_stride;
    const std::int64_t begin = clamp_to(offsets[first], 0, stored);
    const std::int64_t end = clamp_to(offsets[first + offset_stride], begin, stored);
    return {indices,    batch * index_batch, index_stride,           begin, end,
            block_cols, positions,           batch * position_batch, stored};
  }
};

/// Walks two sorted lists together and finds the pairs of stored blocks with equal indices. It is
/// for kernels that compute one block of a sparse-sparse product with blocks of equal depth; the
/// CPU backend, which also supports unequal depths, walks overlaps instead. Unsorted lists lose
/// pairs but are safe.
class PairWalk {
 public:
  struct Pair {
    std::int64_t a = 0, b = 0;  // stored positions
    std::int64_t index = 0;     // the block index they share
  };

  TESSERA_HD constexpr PairWalk(const BsrRow& a, const BsrRow& b)
      : a_(a), b_(b), at_a_(a.begin), at_b_(b.begin) {}

  /// Stores the next pair in `pair`; returns false after the last one.
  TESSERA_HD constexpr bool next(Pair& pair) {
    while (at_a_ < a_.end && at_b_ < b_.end) {
      const std::int64_t left = a_.column(at_a_), right = b_.column(at_b_);
      // An index out of range reads as -1, which is less than all valid ones, and is skipped.
      if (left == right && left >= 0) {
        pair = {at_a_++, at_b_++, left};
        return true;
      }
      if (left <= right) ++at_a_;
      if (right < left) ++at_b_;
    }
    return false;
  }

 private:
  BsrRow a_, b_;
  std::int64_t at_a_, at_b_;
};

}  // namespace tessera::planning
