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

inline constexpr int kStripRows = 16;

/// All compile-time constants and types of a kernel. `kUnit`: depth that a lane loads with one
/// instruction, 16 or 32. `kColumnsTogether`: how many adjacent columns of the dense side a lane
/// loads with one instruction; 0 if columns are contiguous along the depth.
template <planning::Tile kTile, class ElementType, int kColumnsTogether, int kUnitDepth>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr bool kAlongDepth = kColumnsTogether == 0;
  static constexpr int kAcross = kAlongDepth ? 1 : kColumnsTogether;
  static constexpr int kUnit = kUnitDepth;
  static constexpr int kWarps = planning::few_columns_warps(kTile);
  static constexpr int kEights = kTile.n / 8;       // MMAs side by side
  static constexpr int kLoads = kEights / kAcross;  // of columns, at one depth
  // Floats from row to row of the sums: the lanes that store together use different banks.
  static constexpr int kPitch = kTile.n + (kAcross == 4   ? 4
                                           : kAcross == 2 ? 16
                                           : kEights > 1  ? 8
                                                          : 0);
  static constexpr int kMmas = kUnit / 16;  // along a unit
  static constexpr int kWords = kUnit / 8;  // a lane's words of one row, or column, of a unit
  static constexpr int kCtasPerSm = kEights <= (kColumnsTogether == 1 ? 2 : 4) ? 3 : 2;
  // Units whose loads are in flight together: as many as registers hold.
  static constexpr int kTogether = kEights == 1 && kUnit == 16 ? 2 : 1;
  // Whether the columns of a unit are loaded ahead, like its blocks.
  static constexpr bool kColumnsAhead = kEights <= 2;
  static_assert(kTile.m == kStripRows && (kUnit == 16 || kUnit == 32));
  static_assert(kEights % kAcross == 0);

  /// Column of the tile that MMA `eight` multiplies as its column `of_eight`. Any order is right
  /// that sums are stored in; in this one, a lane's load of adjacent columns serves `kAcross` MMAs.
  __device__ static constexpr int column(int eight, int of_eight) {
    return (eight / kAcross * 8 + of_eight) * kAcross + eight % kAcross;
  }
};

struct Arguments {
  planning::BsrView lists;
  const char *values, *dense;
  std::int64_t block_bytes, row_bytes;         // strides of the stored blocks
  std::int64_t depth_bytes, column_bytes;      // strides of the dense side
  std::int64_t pool_bytes, dense_batch_bytes;  // from one matrix to the next; 0: shared
  product::Finish finish;
  int rows, cols;
  int strips;            // per thread block
  int strips_per_block;  // in a row of blocks
  int num_strips;
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
__device__ __forceinline__ Words<kCount> load_words(const char* from) {
  Words<kCount> w;
  if constexpr (kCount == 4) {
    const uint4 got = __ldg(reinterpret_cast<const uint4*>(from));
    w = {got.x, got.y, got.z, got.w};
  } else if constexpr (kCount == 2) {
    const uint2 got = __ldg(reinterpret_cast<const uint2*>(from));
    w = {got.x, got.y};
  } else {
    w.word[0] = __ldg(reinterpret_cast<const unsigned int*>(from));
  }
  return w;
}

/// One word for each of kCount adjacent columns: its elements at two adjacent depths.
template <int kCount>
__device__ __forceinline__ Words<kCount> load_across(const char* from, std::int64_t step) {
  Words<kCount> w;
  if constexpr (kCount == 1) {
    const auto at = [&](const char* element) {
      return std::uint32_t{__ldg(reinterpret_cast<const unsigned short*>(element))};
    };
    w.word[0] = at(from) | at(from + step) << 16;
  } else {
    const auto first = load_words<kCount / 2>(from), second = load_words<kCount / 2>(from + step);
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      w.word[2 * i] = __byte_perm(first.word[i], second.word[i], 0x5410);
      w.word[2 * i + 1] = __byte_perm(first.word[i], second.word[i], 0x7632);
    }
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
    for (int i = 0; i < T::kLoads; ++i) {
      // Columns beyond the last one are not stored.
      const int col = first_col + T::column(i * T::kAcross, lane / 4);
      column_[i] = (col < args.cols ? col : args.cols - T::kAcross) * args.column_bytes;
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
    for (bool more = true; more;) {
      more = left_ > 0;
      Fetched<T> next;
      fetch(next);  // nothing behind the last unit
      multiply(now);
      now = next;
    }
  }

  float sums[T::kEights * 4] = {};

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
      for (int load = 0; load < T::kLoads; ++load) {
        const char* const from = at + column_[load];
        if constexpr (T::kAlongDepth) {
          to.columns[i][load] = load_words<T::kWords>(from);
        } else {
#pragma unroll
          for (int w = 0; w < T::kWords; ++w) {
            const auto got =
                load_across<T::kAcross>(from + 2 * w * args_.depth_bytes, args_.depth_bytes);
#pragma unroll
            for (int of = 0; of < T::kAcross; ++of)
              to.columns[i][load * T::kAcross + of].word[w] = got.word[of];
          }
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
  std::int64_t column_[T::kLoads];
};

/// The sums of all warps of a thread block.
template <class T>
struct Partials {
  static constexpr int kTogether = T::kAcross == 1 ? 2 : 4;  // a lane's floats per access
  struct alignas(kTogether * sizeof(float)) Adjacent {
    float at[kTogether];
  };
  alignas(16) float at[T::kWarps][kStripRows][T::kPitch];

  __device__ void put(int warp, int lane, const float (&sums)[T::kEights * 4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const row = at[warp][half * 8 + lane / 4];
#pragma unroll
      for (int first = 0; first < T::kEights; first += T::kAcross) {
        // The lane's two columns of each MMA from `first` on: 2 * kAcross adjacent ones.
        auto* const to = reinterpret_cast<Adjacent*>(row + T::column(first, lane % 4 * 2));
#pragma unroll
        for (int i = 0; i < 2 * T::kAcross; i += kTogether) {
          Adjacent adjacent;
#pragma unroll
          for (int c = i; c < i + kTogether; ++c)
            adjacent.at[c - i] = sums[(first + c % T::kAcross) * 4 + half * 2 + c / T::kAcross];
          to[i / kTogether] = adjacent;
        }
      }
    }
  }

  /// Adds eight adjacent sums of a row of one warp to x.
  __device__ void add_row(int warp, int row, int col, float (&x)[8]) const {
    const auto* const from = reinterpret_cast<const float4*>(&at[warp][row][col]);
    // Columns 32 apart share banks: half of the lanes read the second four first.
    const bool second = T::kPitch % 8 == 0 && col / 32 % 2 != 0;
    const float4 one = from[second ? 1 : 0], other = from[second ? 0 : 1];
    const float4 low = second ? other : one, high = second ? one : other;
    x[0] += low.x, x[1] += low.y, x[2] += low.z, x[3] += low.w;
    x[4] += high.x, x[5] += high.y, x[6] += high.z, x[7] += high.w;
  }
  /// The same of a column.
  __device__ void add_column(int warp, int row, int col, float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] += at[warp][row + i][col];
  }
};

/// The warps of a thread block that share a strip.
struct Sharers {
  int first, step, count;  // warps
  int thread;              // this one's index among theirs
};

/// Adds up and stores a strip; its first element is (row, col) of the result.
template <class T>
__device__ __forceinline__ void store_strip(const Arguments& args, const Partials<T>& partials,
                                            const Sharers& warps, int row, int col, int batch) {
  constexpr int kN = T::kShape.n;
  const product::Finish& finish = args.finish;
  const int threads = warps.count * kLanes, columns = min(kN, args.cols - col);
  const int end = warps.first + warps.count * warps.step;  // sums are added in a fixed order
  const bool wide = columns % 8 == 0 && product::planes_in_eights(finish, false, row, col, batch);
  if (wide || product::planes_in_eights(finish, true, row, col, batch)) {
    for (int i = warps.thread; i < kStripRows * kN / 8; i += threads) {
      const int r = wide ? i / (kN / 8) : i % 2 * 8, c = wide ? i % (kN / 8) * 8 : i / 2;
      if (c >= columns) continue;
      float x[8] = {};
      for (int warp = warps.first; warp < end; warp += warps.step) {
        if (wide) {
          partials.add_row(warp, r, c, x);
        } else {
          partials.add_column(warp, r, c, x);
        }
      }
      product::finish_eight(finish, x, !wide, row + r, col + c, batch);
    }
  } else {
    const bool by_columns = finish.out.row == 1;  // adjacent lanes store adjacent elements
    for (int i = warps.thread; i < kStripRows * kN; i += threads) {
      const int r = by_columns ? i % kStripRows : i / kN, c = by_columns ? i / kStripRows : i % kN;
      if (c >= columns) continue;
      float sum = 0;
#pragma unroll 2
      for (int warp = warps.first; warp < end; warp += warps.step) sum += partials.at[warp][r][c];
      product::finish_one(finish, sum, row + r, col + c, batch);
    }
  }
}

/// Number of warps that share each of a thread block's strips from `first` on. Where these lie in
/// several rows of blocks and one list is much longer than the others, all warps share one strip
/// after the other.
template <class T>
__device__ __forceinline__ int sharers_of(const Arguments& args, int first, int batch, int lane) {
  const int alike = T::kWarps / args.strips;
  if (args.strips_per_block % args.strips == 0) return alike;
  // What a strip costs beside its units, if strips follow each other, in units of a warp.
  constexpr int kEnds = 6;
  const int parts = args.block_depth / T::kUnit;
  int units = 0;
  if (lane < args.strips && first + lane < args.num_strips)
    units = static_cast<int>(args.lists.row(batch, (first + lane) / args.strips_per_block).size() *
                             parts);
  const int longest = __reduce_max_sync(kAllLanes, units);
  const int all = __reduce_add_sync(kAllLanes, units);
  return longest / alike > all / T::kWarps + kEnds * args.strips ? T::kWarps : alike;
}

/// Computes kWarps / sharers strips from `first` on side by side.
template <class T>
__device__ __forceinline__ void compute_strips(const Arguments& args, Partials<T>& partials,
                                               int first, int sharers) {
  constexpr bool kCrosses = planning::crosses_blocks(T::kShape);
  const int together = T::kWarps / sharers, batch = blockIdx.z, col = blockIdx.y * T::kShape.n;
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int share = warp / together, strip = first + warp % together;
  const bool exists = !kCrosses || strip < args.num_strips;
  if (exists) {
    // With one row of blocks the compiler keeps the list in uniform registers.
    const int block_row = (kCrosses ? strip : first) / args.strips_per_block;
    const planning::BsrRow list = args.lists.row(batch, block_row);
    const int row = (strip - block_row * args.strips_per_block) * kStripRows;
    Strip<T> sums(args, list, row, batch, col, lane);
    const std::int64_t units = list.size() * (args.block_depth / T::kUnit);
    sums.multiply(units * share / sharers, units * (share + 1) / sharers);
    partials.put(warp, lane, sums.sums);
  }
  __syncthreads();
  if (exists)
    store_strip<T>(args, partials, {warp % together, together, sharers, share * kLanes + lane},
                   strip * kStripRows, col, batch);
}

template <class T>
__global__ void __launch_bounds__(T::kWarps* kLanes, T::kCtasPerSm)
    few_columns_kernel(const __grid_constant__ Arguments args) {
  __shared__ Partials<T> partials;
  wait_for_grid_before();
  let_next_grid_begin();
  const int first = blockIdx.x * args.strips;
  if constexpr (!planning::crosses_blocks(T::kShape)) {
    compute_strips(args, partials, first, T::kWarps / args.strips);
  } else {
    const int sharers = sharers_of<T>(args, first, blockIdx.z, threadIdx.x % kLanes);
    for (int done = 0; done < args.strips; done += T::kWarps / sharers) {
      if (done > 0) __syncthreads();
      compute_strips(args, partials, first + done, sharers);
    }
  }
}

}  // namespace tessera::cuda::bsr
