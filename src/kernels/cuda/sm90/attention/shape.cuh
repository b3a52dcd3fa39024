#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/descriptors.cuh"
#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/kernels/row.hpp"

// The sizes of a kernel row, and the layout of Q, K and V in shared memory.
namespace tessera::cuda::sm90::attention {

using namespace cuda::attention;  // parts shared by all architectures

inline constexpr int kWarpgroup = 128;

/// A tile of rows of Q, K or V: panels of `kRows` lines of 128 bytes, or of 64 bytes where the last
/// panel would be half empty. The swizzle is as wide as a line. Where the columns end inside a
/// panel, TMA fills the rest with zeros, and MMAs do not read it.
template <class Element, int kRows, int kColumns>
struct RowsTile {
  using Of = Precision<Element>;
  static constexpr int kChunk = 16 / Of::kBytes;  // elements in 16 bytes
  static constexpr int kLine = kColumns % Of::kLine == 0 ? Of::kLine : Of::kLine / 2;
  static_assert(kColumns % Of::kMmaDepth == 0);
  static constexpr int kLineBytes = kLine * Of::kBytes;
  static constexpr int kPanels = (kColumns + kLine - 1) / kLine;
  static constexpr int kPanelBytes = kRows * kLineBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;

  alignas(tile::kAtomBytes) Element data[kPanels * kRows * kLine];

  /// The panels that hold the first `columns`.
  static constexpr int panels_of(int columns) { return (columns + kLine - 1) / kLine; }

  __device__ Element* panel(int p, int row = 0) { return data + (p * kRows + row) * kLine; }
  /// The 16-byte chunk of a row that holds `column` and its neighbours.
  __device__ uint4* chunk(int row, int column) {
    constexpr int kChunks = kLine / kChunk;
    const int place = column % kLine / kChunk ^ row * kLineBytes / 128 % kChunks;
    return reinterpret_cast<uint4*>(panel(column / kLine, row)) + place;
  }
  /// The address of the chunk that MMA number `mma` reads, from that of the same row's first or
  /// second chunk.
  __device__ static std::uint32_t to_mma(std::uint32_t chunk, int mma) {
    const int column = mma * Of::kMmaDepth;
    return (chunk ^ column % kLine * Of::kBytes) + column / kLine * kPanelBytes;
  }
  /// wgmma descriptor whose depth runs along the columns, from `row` (a multiple of 8) on.
  __device__ std::uint64_t by_columns(int row) const {
    return tile::uniform(tile::descriptor(data + row * kLine, 0, 8 * kLineBytes, kLineBytes));
  }
  /// Offset of MMA number `mma` in the descriptor of by_columns.
  static constexpr std::uint32_t columns_of_mma(int mma) {
    const int column = mma * Of::kMmaDepth;
    return (column / kLine * kPanelBytes + column % kLine * Of::kBytes) >> 4;
  }
  /// wgmma descriptor whose depth runs along the rows, for all columns.
  __device__ std::uint64_t by_rows() const {
    return tile::uniform(tile::descriptor(data, kPanelBytes, 8 * kLineBytes, kLineBytes));
  }
  /// Increment from one MMA to the next in the descriptor of by_rows.
  static constexpr std::uint32_t kRowsOfMma = (Of::kMmaDepth * kLineBytes) >> 4;
};

/// The sizes of a kernel row for one element type.
template <planning::Tile kOfRow, class ElementType>
struct Shape {
  using Element = ElementType;
  using Precision = cuda::Precision<Element>;
  static constexpr planning::Tile kTile = kOfRow;
  static constexpr int kM = kTile.m, kN = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  static constexpr int kConsumers = kTile.warpgroups, kThreads = (kConsumers + 1) * kWarpgroup;
  // KV splits inside the CTA take steps in rotation; the consumers of one split divide the rows.
  static constexpr int kKvSplits = kTile.kv_splits, kSplitConsumers = kConsumers / kKvSplits;
  static constexpr int kRows = kM / kSplitConsumers;  // rows of one consumer
  static constexpr int kPieces = kN / planning::kKeyPiece, kRoundPieces = kPieces * kKvSplits;
  // Number of MMAs of QK and of PV in one step.
  static constexpr int kQkMmas = kDim / Precision::kMmaDepth, kPvMmas = kN / Precision::kMmaDepth;
  // Row groups: one per list in kernel rows with several lists, else one per consumer.
  static constexpr bool kOwnLists = kTile.row_groups > 1;
  static constexpr int kRowGroups = planning::walk_row_groups(kTile);
  static constexpr int kConsumersPerRowGroup = kSplitConsumers / kRowGroups;
  static constexpr int kListRows = kOwnLists ? planning::row_group_queries(kTile) : 0;
  static_assert(kConsumers % kKvSplits == 0 && kRows == 64 && kN % planning::kKeyPiece == 0 &&
                kDim % Precision::kMmaDepth == 0 && kM <= planning::SmallDivisor::kMax);
  static_assert(!kOwnLists ||
                (kKvSplits == 1 && kConsumers % kTile.row_groups == 0 && kPieces <= 2));

  using Queries = RowsTile<Element, kM, (kDim > kDimV ? kDim : kDimV)>;
  using Keys = RowsTile<Element, kN, kDim>;
  using Values = RowsTile<Element, kN, kDimV>;
  using Step = StepDescriptor<kPieces>;
  using Pieces = planning::PiecesOfTile<kTile>;
  using Partial = PartialResult<kDimV, kWarpgroup>;
};

}  // namespace tessera::cuda::sm90::attention
