#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// Rows of Q, K, V and dO in shared memory, which MMAs read with the depth along either dimension.
namespace tessera::cuda::tile {

/// The columns of a panel: a line of 128 bytes, or of 64 bytes where the last panel would be half
/// empty.
template <class Element>
constexpr int line_for(int columns) {
  constexpr int kWhole = Precision<Element>::kLine;
  return columns % kWhole == 0 ? kWhole : kWhole / 2;
}

/// A tile of rows of a tensor [rows, columns]: panels of `kRows` lines of `kLineColumns` columns.
/// The swizzle is as wide as a line. Where the columns end inside a panel, TMA fills the rest with
/// zeros.
template <class Element, int kRows, int kColumns, int kLineColumns = line_for<Element>(kColumns)>
struct RowsTile {
  using Of = Precision<Element>;
  static constexpr int kChunk = 16 / Of::kBytes;  // elements in 16 bytes
  static constexpr int kLine = kLineColumns;
  static_assert(kColumns % Of::kMmaDepth == 0);
  static constexpr int kLineBytes = kLine * Of::kBytes;
  static constexpr int kPanels = (kColumns + kLine - 1) / kLine;
  static constexpr int kPanelBytes = kRows * kLineBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;

  alignas(kAtomBytes) Element data[kPanels * kRows * kLine];

  /// The panels that hold the first `columns`.
  static constexpr int panels_of(int columns) { return (columns + kLine - 1) / kLine; }

  __device__ Element* panel(int p, int row = 0) { return data + (p * kRows + row) * kLine; }
  /// The 16-byte chunk of a row that holds `column` and its neighbours.
  __device__ uint4* chunk(int row, int column) {
    constexpr int kChunks = kLine / kChunk;
    const int place = column % kLine / kChunk ^ row * kLineBytes / 128 % kChunks;
    return reinterpret_cast<uint4*>(panel(column / kLine, row)) + place;
  }
  /// The address of the chunk at `column`, from that of the same row's first chunk.
  __device__ static std::uint32_t at_column(std::uint32_t chunk, int column) {
    return (chunk ^ column % kLine * Of::kBytes) + column / kLine * kPanelBytes;
  }
  /// The address of the chunk that MMA number `mma` reads, from that of the same row's first or
  /// second chunk.
  __device__ static std::uint32_t to_mma(std::uint32_t chunk, int mma) {
    return at_column(chunk, mma * Of::kMmaDepth);
  }
  /// wgmma descriptor whose depth runs along the columns, from `row` (a multiple of 8) on.
  __device__ std::uint64_t by_columns(int row) const {
    return uniform(descriptor(data + row * kLine, 0, 8 * kLineBytes, kLineBytes));
  }
  /// Offset of MMA number `mma` in the descriptor of by_columns.
  static constexpr std::uint32_t columns_of_mma(int mma) {
    const int column = mma * Of::kMmaDepth;
    return (column / kLine * kPanelBytes + column % kLine * Of::kBytes) >> 4;
  }
  /// wgmma descriptor whose depth runs along the rows, for all columns.
  __device__ std::uint64_t by_rows() const {
    return uniform(descriptor(data, kPanelBytes, 8 * kLineBytes, kLineBytes));
  }
  /// Increment from one MMA to the next in the descriptor of by_rows.
  static constexpr std::uint32_t kRowsOfMma = (Of::kMmaDepth * kLineBytes) >> 4;
};

}  // namespace tessera::cuda::tile
