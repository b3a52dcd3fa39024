#pragma once

#include <algorithm>

#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>

#include "src/walk/list_walk.hpp"

// Makes the views that walks read from the tensors of a problem: pointers and strides. No data is
// read.
namespace tessera::planning {

inline Indices indices_of(const Tensor& tensor) {
  if (tensor.dtype == DType::i64) return {nullptr, static_cast<const std::int64_t*>(tensor.data)};
  return {static_cast<const std::int32_t*>(tensor.data), nullptr};
}

/// The strides of a list [batch|1, head|1, row, entry]; a dimension of size 1 is shared by all.
inline ListStrides list_strides(const Tensor& tensor) {
  ListStrides strides;
  if (tensor.size(0) > 1) strides.batch = tensor.stride(0);
  if (tensor.size(1) > 1) strides.head = tensor.stride(1);
  strides.row = tensor.stride(2);
  if (tensor.rank > 3) strides.entry = tensor.stride(3);
  return strides;
}

/// The strides of indices or bit tiles; with offsets, these are one-dimensional.
inline ListStrides entry_strides(const Tensor& tensor, bool by_offsets) {
  return by_offsets ? ListStrides{.entry = tensor.stride(0)} : list_strides(tensor);
}

inline ListView view_of(const BlockList& list) {
  if (!list) return {};
  const bool by_offsets = static_cast<bool>(list.offsets);
  const Tensor& sizes = by_offsets ? list.offsets : list.counts;
  return {.sizes = indices_of(sizes),
          .indices = indices_of(list.indices),
          .size_strides = list_strides(sizes),
          .index_strides = entry_strides(list.indices, by_offsets),
          .by_offsets = by_offsets,
          .rows = by_offsets ? sizes.size(2) - 1 : sizes.size(2),
          .extent = list.indices.size(list.indices.rank - 1)};
}

/// `group`: the number of heads that share a set of lists.
inline MaskView view_of(const BlockMask& mask, std::int64_t kv_length, std::int64_t group = 1) {
  MaskView view{.full = view_of(mask.full),
                .partial = view_of(mask.partial),
                .bit_tile = {},
                .bit_tile_strides = {},
                .block_q = mask.block_q,
                .block_kv = mask.block_kv,
                .kv_blocks = (kv_length + mask.block_kv - 1) / mask.block_kv,
                .group = group};
  if (mask.bit_tile) {
    view.bit_tile = indices_of(mask.bit_tile);
    view.bit_tile_strides = entry_strides(mask.bit_tile, view.partial.by_offsets);
    view.bit_tiles = mask.bits.size(0);
  }
  return view;
}

/// The number of sets of lists of a matrix: its batch if offsets or indices are batched, else 1.
inline std::int64_t list_batches(const BsrMatrix& matrix) {
  std::int64_t batches = 1;
  for (const Tensor* list : {&matrix.row_offsets, &matrix.col_indices})
    if (list->rank == 2) batches = std::max(batches, list->size(0));
  return batches;
}

/// Transposed lists to write, contiguous: for each block column ("line"), its blocks in ascending
/// order of rows.
struct LineLists {
  IndexSink offsets;    // [batch, lines + 1]
  IndexSink rows;       // [batch, stored]: the block's row
  IndexSink positions;  // [batch, stored]: the block's position in the values
  std::int64_t lines = 0, stored = 0;
};

inline BsrView view_of(const BsrMatrix& matrix) {
  const Tensor &offsets = matrix.row_offsets, &columns = matrix.col_indices;
  const auto batch_stride = [](const Tensor& t) {
    return t.rank == 2 && t.size(0) > 1 ? t.stride(0) : 0;
  };
  return {.offsets = indices_of(offsets),
          .indices = indices_of(columns),
          .offset_batch = batch_stride(offsets),
          .offset_stride = offsets.stride(offsets.rank - 1),
          .index_batch = batch_stride(columns),
          .index_stride = columns.stride(columns.rank - 1),
          .block_rows = offsets.size(offsets.rank - 1) - 1,
          .block_cols = matrix.cols / matrix.block_cols(),
          .stored = columns.size(columns.rank - 1)};
}

/// `table` is [batch, max_pages], `pool` is k or v: [pages, page, kv_heads, ...].
inline PageView page_view(const Tensor& table, const Tensor& pool) {
  return {.table = static_cast<const std::int32_t*>(table.data),
          .batch_stride = table.stride(0),
          .entry_stride = table.stride(1),
          .max_pages = table.size(1),
          .pages = pool.size(0),
          .page_size = pool.size(1)};
}

}  // namespace tessera::planning
