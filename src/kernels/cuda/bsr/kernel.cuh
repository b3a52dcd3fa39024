#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/kernels/cuda/bsr/plan.hpp"
#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/mma.cuh"
#include "src/kernels/cuda/product/epilogue.cuh"
#include "src/kernels/row.hpp"
#include "src/walk/list_walk.hpp"

// A sparse matrix times few columns, on every GPU: each warp reads stored blocks straight into the
// registers of its MMAs, with the columns from L1 and L2. Many warps hide the latency of memory, so
// there is no shared memory but for the sums of the warps that share a strip of 16 rows.
namespace tessera::cuda::bsr {

inline constexpr int kStripRows = 16, kSetColumns = 16;

/// All compile-time constants and types of a kernel. `kUnit`: depth that a lane loads with one
/// instruction, 16 or 32. `kAlongDepth`: whether the columns of the dense side are contiguous along
/// the depth, at multiples of 16 bytes; else their elements are loaded one by one.
template <planning::Tile kTile, class ElementType, bool kColumnsAlongDepth, int kUnitDepth>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr bool kAlongDepth = kColumnsAlongDepth;
  static constexpr int kUnit = kUnitDepth;
  static constexpr int kWarps = planning::few_columns_warps(kTile);
  static constexpr int kEights = kTile.n / 8;  // MMAs side by side
  static constexpr int kSets = (kTile.n + kSetColumns - 1) / kSetColumns;
  static constexpr int kMmas = kUnit / 16;  // along a unit
  static constexpr int kWords = kUnit / 8;  // a lane's words of one row, or column, of a unit
  static constexpr int kCtasPerSm = kEights <= (kAlongDepth ? 4 : 2) ? 3 : 2;
  // Units whose loads are in flight together: as many as registers hold.
  static constexpr int kTogether = kEights == 1 && kUnit == 16 ? 2 : 1;
  // Whether the columns of a unit are loaded ahead, like its blocks.
  static constexpr bool kColumnsAhead = kEights <= 2;
  static_assert(kTile.m == kStripRows && (kUnit == 16 || kUnit == 32));
};

struct Arguments {
  planning::BsrView lists;
  const char *values, *dense;
  std::int64_t block_bytes, row_bytes;         // strides of the stored blocks
  std::int64_t depth_bytes, column_bytes;      // strides of the dense side
  std::int64_t pool_bytes, dense_batch_bytes;  // from one matrix to the next; 0: shared
  product::Finish finish;
  int rows, cols;
  int strips;  // per thread block
  int groups;  // thread blocks per row of blocks
  int block_depth;
};

/// A lane's part of a unit: words of two adjacent elements along the depth.
template <int kCount>
struct Words {
  std::uint32_t word[kCount];
};

/// Stored blocks are read once: they do not displace the columns in L1.
template <int kCount>
__device__ __forceinline__ Words<kCount> load_once(const char* from) {
  Words<kCount> w;
  if constexpr (kCount == 4) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w.word[0]), "=r"(w.word[1]), "=r"(w.word[2]), "=r"(w.word[3])
                 : "l"(from));
  } else {
    asm volatile("ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];"
                 : "=r"(w.word[0]), "=r"(w.word[1])
                 : "l"(from));
  }
  return w;
}

template <int kCount>
__device__ __forceinline__ Words<kCount> load_column(const char* from) {
  Words<kCount> w;
  if constexpr (kCount == 4) {
    const uint4 got = __ldg(reinterpret_cast<const uint4*>(from));
    w = {got.x, got.y, got.z, got.w};
  } else {
    const uint2 got = __ldg(reinterpret_cast<const uint2*>(from));
    w = {got.x, got.y};
  }
  return w;
}

/// The same of columns that are not contiguous along the depth.
template <int kCount>
__device__ __forceinline__ Words<kCount> gather_column(const char* from, std::int64_t step) {
  Words<kCount> w;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const auto at = [&](int element) {
      return std::uint32_t{__ldg(reinterpret_cast<const unsigned short*>(from + element * step))};
    };
    w.word[i] = at(2 * i) | at(2 * i + 1) << 16;
  }
  return w;
}

/// Units that are in flight together.
template <class T>
struct Fetched {
  Words<T::kWords> upper[T::kTogether], lower[T::kTogether];  // rows 0 to 7, and 8 to 15
  Words<T::kWords> columns[T::kTogether][T::kEights];
  int depth[T::kTogether];  // where a unit begins along the depth; -1: nothing to multiply
};

/// A warp's share of the stored blocks of a strip, and its sums.
template <class T>
class Strip {
 public:
  /// `first_row`: the strip's first row inside its row of blocks.
  __device__ Strip(const Arguments& args, const planning::BsrRow& list, int first_row, int batch,
                   int first_col, int lane)
      : args_(args), list_(list), lane_(lane), parts_(args.block_depth / T::kUnit) {
    const int row = first_row + lane / 4, along = lane % 4 * (T::kUnit / 4);
    values_ = args.values + batch * args.pool_bytes + row * args.row_bytes + along * 2;
    dense_ = args.dense + batch * args.dense_batch_bytes + along * args.depth_bytes;
#pragma unroll
    for (int e = 0; e < T::kEights; ++e) {
      // Columns beyond the last one are not stored.
      const int col = first_col + e * 8 + lane / 4;
      column_[e] = (col < args.cols ? col : args.cols - 1) * args.column_bytes;
    }
  }

  /// Multiplies units [begin, end) of the strip: a block has `block_depth / kUnit` of them.
  __device__ void multiply(std::int64_t begin, std::int64_t end) {
    if (begin >= end) return;
    entry_ = list_.begin + begin / parts_;
    part_ = static_cast<int>(begin % parts_);
    left_ = end - begin;
    Fetched<T> now;
    read_list();
    fetch(now);
    while (left_ > 0) {
      Fetched<T> next;
      fetch(next);
      multiply(now);
      now = next;
    }
    multiply(now);
  }

  float sums[T::kSets * 8] = {};

 private:
  /// Reads the list's entries of the units that are fetched next.
  __device__ void read_list() {
    std::int64_t entry = entry_;
    int part = part_;
#pragma unroll
    for (int i = 0; i < T::kTogether; ++i) {
      depth_[i] = -1;
      if (i >= left_) continue;
      const auto column = static_cast<int>(list_.column(entry));
      if (column >= 0) depth_[i] = column * args_.block_depth + part * T::kUnit;
      if (++part == parts_) part = 0, ++entry;
    }
  }

  __device__ void fetch(Fetched<T>& to) {
#pragma unroll
    for (int i = 0; i < T::kTogether; ++i) {
      to.depth[i] = depth_[i];
      if (left_ <= 0) continue;
      // A block is read whatever its column is: its loads do not wait for the list.
      const char* const from = values_ + entry_ * args_.block_bytes + part_ * (T::kUnit * 2);
      to.upper[i] = load_once<T::kWords>(from);
      to.lower[i] = load_once<T::kWords>(from + 8 * args_.row_bytes);
      --left_;
      if (++part_ == parts_) part_ = 0, ++entry_;
    }
    if constexpr (T::kColumnsAhead) load_columns(to);
    read_list();
  }

  __device__ void load_columns(Fetched<T>& to) {
#pragma unroll
    for (int i = 0; i < T::kTogether; ++i) {
      if (to.depth[i] < 0) continue;
      const char* const at = dense_ + to.depth[i] * args_.depth_bytes;
#pragma unroll
      for (int e = 0; e < T::kEights; ++e) {
        if constexpr (T::kAlongDepth) {
          to.columns[i][e] = load_column<T::kWords>(at + column_[e]);
        } else {
          to.columns[i][e] = gather_column<T::kWords>(at + column_[e], args_.depth_bytes);
        }
      }
    }
  }

  __device__ void multiply(Fetched<T>& from) {
    if constexpr (!T::kColumnsAhead) load_columns(from);
#pragma unroll
    for (int i = 0; i < T::kTogether; ++i) {
      if (from.depth[i] < 0) continue;
#pragma unroll
      for (int e = 0; e < T::kEights; ++e) {
#pragma unroll
        for (int m = 0; m < T::kMmas; ++m) {
          // The order of the depth inside a unit is the same in both operands, and no other
          // matters.
          const std::uint32_t a[4] = {from.upper[i].word[2 * m], from.lower[i].word[2 * m],
                                      from.upper[i].word[2 * m + 1], from.lower[i].word[2 * m + 1]};
          mma<typename T::Element>(reinterpret_cast<float(&)[4]>(sums[e * 4]), a,
                                   from.columns[i][e].word[2 * m],
                                   from.columns[i][e].word[2 * m + 1]);
        }
      }
    }
  }

  const Arguments& args_;
  const planning::BsrRow list_;
  int lane_, parts_, part_ = 0;
  std::int64_t entry_ = 0, left_ = 0;
  int depth_[T::kTogether];  // as in Fetched, of the units that are fetched next
  const char *values_, *dense_;
  std::int64_t column_[T::kEights];
};

template <class T>
__global__ void __launch_bounds__(T::kWarps* kLanes, T::kCtasPerSm)
    few_columns_kernel(const __grid_constant__ Arguments args) {
  __shared__ float partials[T::kWarps][T::kSets][8][kLanes];
  wait_for_grid_before();
  let_next_grid_begin();
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int in_block = blockIdx.x % args.groups * args.strips + warp % args.strips;
  const int block_row = blockIdx.x / args.groups, batch = blockIdx.z;
  const int split = warp / args.strips, splits = T::kWarps / args.strips;
  const int col = blockIdx.y * T::kShape.n;
  const planning::BsrRow list = args.lists.row(batch, block_row);
  Strip<T> strip(args, list, in_block * kStripRows, batch, col, lane);
  const std::int64_t units = list.size() * (args.block_depth / T::kUnit);
  strip.multiply(units * split / splits, units * (split + 1) / splits);
#pragma unroll
  for (int set = 0; set < T::kSets; ++set)
#pragma unroll
    for (int i = 0; i < 8; ++i) partials[warp][set][i][lane] = strip.sums[set * 8 + i];
  __syncthreads();
  const int last_col = min(col + T::kShape.n, args.cols);  // a set may be wider than the tile
  const int row = (block_row * args.groups * args.strips + in_block) * kStripRows;
  for (int set = split; set < T::kSets; set += splits) {
    float sum[8] = {};
    for (int of = 0; of < splits; ++of)  // in a fixed order
#pragma unroll
      for (int i = 0; i < 8; ++i)
        sum[i] += partials[of * args.strips + warp % args.strips][set][i][lane];
    product::store_tile<kSetColumns>(args.finish, sum, row, col + set * kSetColumns, batch,
                                     row + kStripRows, last_col, lane);
  }
}

}  // namespace tessera::cuda::bsr
