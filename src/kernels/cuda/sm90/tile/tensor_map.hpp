#pragma once

#include <cuda.h>

#include <cstdint>

#include <tessera/tensor.hpp>

namespace tessera::cuda::tile {

/// A matrix, or a batch of them, as TMA sees it: `inner` elements contiguous, then rows, then
/// batches. Strides in elements. Reads outside give zeros.
struct MatrixMap {
  const void* data;
  DType dtype;
  std::int64_t inner, rows, batches;
  std::int64_t row_stride, batch_stride;
};

/// Whether TMA can read it: 16-byte base and pitches, sizes and coordinates of 32 bits.
bool tma_readable(const MatrixMap& matrix);

/// Whether TMA can write it without touching anything else: it clips at the end of a line only in
/// whole pieces of 16 bytes.
bool tma_writable(const MatrixMap& matrix);

/// The descriptor for boxes of `box_inner` elements x `box_rows`, with the swizzle that is as wide
/// as their lines: 128, 64 or 32 bytes, by default 128. Host only; enqueues nothing.
CUtensorMap tensor_map(const MatrixMap& matrix, int box_rows, int box_inner = 0);

/// The same with one more dimension between rows and batches: `inner` is cut into panels of 128
/// bytes, and a box has `box_panels` of them, one behind the other in shared memory. Not cut where
/// `box_panels` is 0: then that dimension has size 1.
CUtensorMap panel_map(const MatrixMap& matrix, int box_rows, int box_panels);

/// Rows of several heads, [batches, rows, heads, inner], as attention has them. Strides in
/// elements; `inner` is contiguous.
struct HeadsMap {
  const void* data;
  DType dtype;
  std::int64_t inner, rows, heads, batches;
  std::int64_t row_stride, head_stride, batch_stride;
};
bool tma_readable(const HeadsMap& tensor);

/// Boxes of `box_inner` elements x `box_rows` rows of one head; coordinates (inner, row, head,
/// batch). Swizzled as wide as their lines.
CUtensorMap rows_map(const HeadsMap& tensor, int box_rows, int box_inner);

/// The same rows of `fold` adjacent heads, which follow one another before the next row;
/// coordinates (inner, head of the group, row, group, batch).
CUtensorMap folded_map(const HeadsMap& tensor, int fold, int box_rows, int box_inner);

}  // namespace tessera::cuda::tile
