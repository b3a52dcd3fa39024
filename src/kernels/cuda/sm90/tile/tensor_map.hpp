#pragma once

#include <cuda.h>

#include <cstdint>

#include <tessera/tensor.hpp>

namespace tessera::cuda::tile {

/// A matrix, or a batch of them, for TMA: `inner` contiguous elements, then rows, then batches;
/// strides in elements. Reads outside give zeros.
struct MatrixMap {
  const void* data;
  DType dtype;
  std::int64_t inner, rows, batches;
  std::int64_t row_stride, batch_stride;
};

/// Whether TMA can read it: base and pitches are multiples of 16 bytes, sizes and coordinates fit
/// 32 bits.
bool tma_readable(const MatrixMap& matrix);

/// Whether TMA can write it without writing anything else: TMA clips at the end of a line only in
/// whole pieces of 16 bytes.
bool tma_writable(const MatrixMap& matrix);

/// The tensor map for boxes of `box_inner` elements x `box_rows` rows, with a swizzle as wide as
/// their lines: 128 (default), 64 or 32 bytes. Runs on the host; enqueues nothing.
CUtensorMap tensor_map(const MatrixMap& matrix, int box_rows, int box_inner = 0);

/// The same with one more dimension between rows and batches: `inner` is divided into panels of 128
/// bytes, and a box has `box_panels` of them, one behind the other in shared memory. With
/// `box_panels` 0 the dimension has size 1 and `inner` is not divided; then a box has lines of
/// `box_inner` elements, which are 128 bytes by default.
CUtensorMap panel_map(const MatrixMap& matrix, int box_rows, int box_panels, int box_inner = 0);

/// Rows of several heads, [batches, rows, heads, inner], for TMA. Strides in elements; `inner` is
/// contiguous.
struct HeadsMap {
  const void* data;
  DType dtype;
  std::int64_t inner, rows, heads, batches;
  std::int64_t row_stride, head_stride, batch_stride;
  bool streams = false;  // memory is the limit: L2 fetches no more than a box reads
  // A box holds rows 0 1, 4 5, 8 9, ... from its first one on, which alone is checked against the
  // end of the tensor. Coordinates (inner, row, 0, head, batch).
  bool every_second_pair = false;
};
/// Of a [batch, length, heads, dim] tensor; a packed [total, heads, dim] tensor becomes one batch.
HeadsMap heads_of(const Tensor& tensor);
/// The same of a tensor whose length is contiguous: lines are columns.
HeadsMap columns_of(const Tensor& tensor);
bool tma_readable(const HeadsMap& tensor);

/// The tensor map for boxes of `box_inner` elements x `box_rows` rows of one head; coordinates
/// (inner, row, head, batch). The swizzle is as wide as a line.
CUtensorMap rows_map(const HeadsMap& tensor, int box_rows, int box_inner);

/// The same for boxes of every second pair of rows.
CUtensorMap pairs_map(const HeadsMap& tensor, int box_rows, int box_inner);

/// The same with `fold` adjacent heads folded into rows: a row's heads follow one another before
/// the next row; coordinates (inner, head of the group, row, group, batch).
CUtensorMap folded_map(const HeadsMap& tensor, int fold, int box_rows, int box_inner);

/// folded_map, or with `fold` 0 rows_map or pairs_map, from a per-thread cache: most calls repeat
/// the maps of an earlier call, and the driver needs up to 0.1 us to encode one. Valid until the
/// next call.
const CUtensorMap& recent_map(const HeadsMap& tensor, int fold, int box_rows, int box_inner);

}  // namespace tessera::cuda::tile
