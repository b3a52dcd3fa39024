#pragma once

#include <cstdint>
#include <type_traits>

#include "src/kernels/cuda/attention/descriptors.cuh"
#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/tile/arrivals.cuh"
#include "src/kernels/cuda/sm90/tile/rows_tile.cuh"
#include "src/kernels/row.hpp"

// The sizes of a kernel row, and the layout of Q, K and V in shared memory.
namespace tessera::cuda::sm90::attention {

using namespace cuda::attention;  // parts shared by all architectures

inline constexpr int kWarpgroup = 128;

using tile::arrive_as_warp;
using tile::kEachLaneArrives;
using tile::kWarpArrivals;
using tile::RowsTile;

struct NoOnes {};

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

  // FP8. MMAs read its operands with the depth contiguous, so V is transposed: a row per column of
  // V, and a panel per piece of keys (`turn_values`). Results do not fit into the Q buffer.
  static constexpr bool kNarrow = sizeof(Element) == 1;
  using Queries = RowsTile<Element, kM, (kDim > kDimV || kNarrow ? kDim : kDimV)>;
  using Keys = RowsTile<Element, kN, kDim>;
  using Values = std::conditional_t<kNarrow, RowsTile<Element, kDimV, kN, planning::kKeyPiece>,
                                    RowsTile<Element, kN, kDimV>>;
  using ValuesOfPiece = RowsTile<Element, planning::kKeyPiece, kDimV>;  // as rows, not transposed
  // Row sums are products of P with ones: eight rows, as few as an MMA reads.
  using Ones = std::conditional_t<kNarrow, RowsTile<Element, 8, 64, 64>, NoOnes>;
  using Step = std::conditional_t<kNarrow, FactorStep<kPieces>, StepDescriptor<kPieces>>;
  using Pieces = planning::PiecesOfTile<kTile>;
  using Partial = std::conditional_t<kNarrow, TwoSumPartial<kDimV, kWarpgroup>,
                                     PartialResult<kDimV, kWarpgroup>>;
  static constexpr int kSoftmaxState = planning::softmax_state(kNarrow ? DType::e4m3 : DType::f16);
  static_assert(sizeof(Partial) == sizeof(float) * kWarpgroup * (kDimV / 2 + kSoftmaxState));
};

}  // namespace tessera::cuda::sm90::attention
