#pragma once

#include <cstdint>

#include "src/kernels/cuda/attention/descriptors.cuh"
#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"
#include "src/kernels/row.hpp"

// The sizes of a kernel row, and how rows of Q, K and V lie in shared memory.
namespace tessera::cuda::sm90::attention {

using namespace cuda::attention;  // the pieces that no architecture owns

inline constexpr int kWarpgroup = 128;

/// A tile of rows of Q, K or V: panels of 64 columns with `kRows` lines each, or of 32 columns
/// where the last panel would be half empty. The swizzle is as wide as a line.
template <class Element, int kRows, int kColumns>
struct RowsTile {
  static constexpr int kLine = kColumns % tile::kLine == 0 ? tile::kLine : tile::kLine / 2;
  static_assert(kColumns % kLine == 0);
  static constexpr int kLineBytes = kLine * 2, kPanels = kColumns / kLine;
  static constexpr int kPanelBytes = kRows * kLineBytes;
  static constexpr int kBytes = kPanels * kPanelBytes;

  alignas(tile::kAtomBytes) Element data[kPanels * kRows * kLine];

  __device__ Element* panel(int p, int row = 0) { return data + (p * kRows + row) * kLine; }
  /// The 16-byte chunk of a row that holds `column` and its seven neighbours.
  __device__ uint4* chunk(int row, int column) {
    const int place = column % kLine / 8 ^ row * kLineBytes / 128 % (kLine / 8);
    return reinterpret_cast<uint4*>(panel(column / kLine, row)) + place;
  }
  /// Moves the address of one of a row's first two chunks by `column`, a multiple of 16 columns.
  __device__ static std::uint32_t to_column(std::uint32_t chunk, int column) {
    return (chunk ^ column % kLine * 2) + column / kLine * kPanelBytes;
  }
  /// wgmma descriptor with the columns as depth, from a row (a multiple of 8) on.
  __device__ std::uint64_t by_columns(int row) const {
    return tile::uniform(tile::descriptor(data + row * kLine, 0, 8 * kLineBytes, kLineBytes));
  }
  /// What depth step i of 16 columns adds to that descriptor.
  static constexpr std::uint32_t column_step(int i) {
    return (i * 16 / kLine * kPanelBytes + i * 16 % kLine * 2) >> 4;
  }
  /// wgmma descriptor with the rows as depth, all columns.
  __device__ std::uint64_t by_rows() const {
    return tile::uniform(tile::descriptor(data, kPanelBytes, 8 * kLineBytes, kLineBytes));
  }
  static constexpr std::uint32_t kRowStep = (16 * kLineBytes) >> 4;
};

/// The sizes of a kernel row for one element type.
template <planning::Tile kOfRow, class ElementType>
struct Shape {
  using Element = ElementType;
  static constexpr planning::Tile kTile = kOfRow;
  static constexpr int kM = kTile.m, kN = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  static constexpr int kConsumers = kTile.warpgroups, kThreads = (kConsumers + 1) * kWarpgroup;
  // KV splits inside the CTA take the steps of a walk in rotation; the consumers of one split
  // divide the rows.
  static constexpr int kKvSplits = kTile.kv_splits, kSplitConsumers = kConsumers / kKvSplits;
  static constexpr int kRows = kM / kSplitConsumers;  // of one consumer
  static constexpr int kPieces = kN / planning::kKeyPiece, kRoundPieces = kPieces * kKvSplits;
  // Row groups: those with a list each, or else the consumers.
  static constexpr bool kOwnLists = kTile.row_groups > 1;
  static constexpr int kRowGroups = planning::walk_row_groups(kTile);
  static constexpr int kConsumersPerRowGroup = kSplitConsumers / kRowGroups;
  static constexpr int kListRows = kOwnLists ? planning::row_group_queries(kTile) : 0;
  static_assert(kConsumers % kKvSplits == 0 && kRows == 64 && kN % planning::kKeyPiece == 0 &&
                kDim % 16 == 0 && kM <= planning::SmallDivisor::kMax);
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
