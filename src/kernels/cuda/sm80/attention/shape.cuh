#pragma once

#include <algorithm>
#include <cstdint>

#include "src/kernels/cuda/attention/masks.cuh"
#include "src/kernels/cuda/attention/partials.cuh"
#include "src/kernels/cuda/attention/results.cuh"
#include "src/kernels/cuda/attention/scores.cuh"
#include "src/kernels/cuda/attention/work.cuh"
#include "src/kernels/cuda/common/precision.cuh"
#include "src/kernels/cuda/common/swizzle.hpp"
#include "src/kernels/cuda/sm80/attention/plan.hpp"
#include "src/walk/list_walk.hpp"

// The sizes of a kernel row, and the kernel's parameters.
namespace tessera::cuda::sm80::attention {

using namespace cuda::attention;  // parts shared by all architectures
using cuda::CopyShare;
using cuda::SwizzledRows;

/// Each kernel row is compiled as two kernels per type: plain, and with a score transform before
/// the softmax (softcap, scales of zero or less), which serves pages too.
enum class Instance { plain, transformed };

template <planning::Tile kTile, class ElementType, Instance kInstance>
struct Traits {
  using Element = ElementType;
  using Precision = cuda::Precision<Element>;
  static constexpr planning::Tile kOfRow = kTile;
  static constexpr bool kTransformsScores = kInstance == Instance::transformed;
  static constexpr bool kReadsPages = kTransformsScores;
  static constexpr int kM = kTile.m, kN = kTile.n, kDim = kTile.k, kDimV = kTile.v;
  static constexpr int kStages = kTile.stages;
  static constexpr int kWarps = planning::attention_warps(kTile), kThreads = kWarps * kLanes;
  // Rows of a warp: one or two blocks of 16, the rows of an MMA.
  static constexpr int kWarpRows = planning::attention_warp_rows(kTile), kBlocks = kWarpRows / 16;
  static constexpr int kQkMmas = kDim / 16, kPvMmas = kN / 16;  // depth of QK and PV in MMAs
  static_assert(kN == planning::kKeyPiece && kWarps <= 8 && kWarpRows % 16 == 0 && kBlocks <= 2);
  static_assert(kStages == 1 || kStages == 2);

  using Queries = SwizzledRows<kM, kDim>;
  using Keys = SwizzledRows<kN, kDim>;
  using Values = SwizzledRows<kN, kDimV>;
  using Step = StepDescriptor<1>;
  using Pieces = planning::ListPieces<kWarps, kWarpRows>;  // a row group is the rows of a warp
  using Partial = PartialResult<kDimV, kLanes>;

  // A score transform needs registers too.
  static constexpr int kCtasPerSm =
      std::min(planning::attention_ctas_compiled(kTile), kTransformsScores&& kBlocks > 1 ? 2 : 8);
  // The columns of Q that stay in registers, in MMAs: as many as fit beside the accumulators and
  // kOtherRegisters. QK reads less shared memory, which has little time left.
  static constexpr int kRegisters = std::min(65536 / (kThreads * kCtasPerSm) / 8 * 8, 255);
  static constexpr int kOtherRegisters = (kBlocks == 1 && kRegisters > 128 ? 72 : 48) +
                                         (kStages == 1 ? 24 : 0) +
                                         (kTransformsScores ? 8 * kBlocks : 0);
  static constexpr int kFreeRegisters =
      kRegisters - planning::attention_accumulators(kTile) - kOtherRegisters;
  static constexpr int kQRegisterMmas = std::clamp(kFreeRegisters / (4 * kBlocks), 0, kQkMmas);
  static constexpr bool kQInRegisters = kQRegisterMmas == kQkMmas;
  // Whether the copies of a step are started before QK: beside the scores there are no registers.
  static constexpr bool kCopiesFirst = kReadsPages && kDim > 192;
};

/// Q, K or V in global memory; strides in elements, columns are contiguous. Packed: batch 0.
struct Source {
  const void* data;
  std::int64_t batch, row, head;
  std::int32_t dim;  // columns
};

/// A [batch, length, heads, dim] tensor, or a packed [total, heads, dim] one.
inline Source source_of(const Tensor& t) {
  const int row = t.rank - 3;
  return {t.data, row > 0 ? t.stride(0) : 0, t.stride(row), t.stride(row + 1),
          static_cast<std::int32_t>(t.size(row + 2))};
}

/// Where the keys of a step lie: the page of each eight of them, and the first one's row in its
/// page.
struct PagedKeys {
  static constexpr int kKeys = 8;
  std::int32_t page[planning::kKeyPiece / kKeys], row;
};

/// The kernel's parameters.
struct Arguments {
  Source q, k, v;  // with pages, a batch of k and v is a page
  Walk walk;
  Result result;
  Exponents exponents;
  ScoreTransform transform;
  Sinks sinks;
  ElementMasks masks;
  void* partials;               // partial results of split tiles
  std::uint64_t* merge_counts;  // finished parts of each split tile
  planning::PageView pages;     // without a table: contiguous keys
  std::int32_t rows_of_piece;   // adjacent keys of a step, of one page: a power of two up to 64
};

}  // namespace tessera::cuda::sm80::attention
