#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/spgemm/walk.cuh"
#include "src/kernels/row.hpp"

// Sparse times sparse for any block size, any strides and any float type, on every GPU: a CTA
// computes a piece of one stored block of the result, in f32.
namespace tessera::cuda::spgemm {

inline constexpr int kThreads = 256;

/// The stored blocks of a matrix, as the product reads them (transposed where requested); strides
/// in elements.
struct Pool {
  void* data = nullptr;
  DType dtype = DType::none;
  std::int64_t block = 0, row = 0, col = 0;
};

struct Arguments {
  Lists a;
  RightBlocks b;
  ResultRuns<1> runs;
  ListCopy copy;
  Pool left, right, out;
  int rows = 0, cols = 0, depth = 0;       // of a result block; depth of a block product
  int pieces_down = 0, pieces_across = 0;  // pieces per result block
  std::int64_t pieces = 0;                 // pieces of all result blocks
  float alpha = 1, beta = 0;
};

/// Pairs of stored blocks of A and B to multiply, in the order of A's list: those of one batch of
/// at most kThreads of A's entries.
struct Pairs {
  int count;
  int left[kThreads], right[kThreads];
};

/// Finds the pairs of the kThreads entries of A from `first` on (before `end`) for column `column`
/// of the result, one entry per thread.
__device__ inline void find_pairs(const Arguments& args, int first, int end, int column,
                                  Pairs& pairs) {
  __shared__ int found_in_warp[kThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int entry = first + threadIdx.x;
  int left = -1, right = -1;
  if (entry < end) {
    left = args.a.position(entry);
    Search search(args.b, args.a.indices[entry], column);
    while (search.open()) search.take(args.b.stored.indices[search.middle()]);
    right = search.found;
  }
  const bool found = left >= 0 && right >= 0;
  const unsigned votes = __ballot_sync(kAllLanes, found);
  if (lane == 0) found_in_warp[warp] = __popc(votes);
  __syncthreads();
  int slot = __popc(votes & ((1u << lane) - 1)), total = 0;
  for (int w = 0; w < kThreads / 32; ++w) {
    if (w < warp) slot += found_in_warp[w];
    total += found_in_warp[w];
  }
  if (found) {
    pairs.left[slot] = left;
    pairs.right[slot] = right;
  }
  if (threadIdx.x == 0) pairs.count = total;
  __syncthreads();
}

/// Loads a piece of a block into shared memory as f32: kExtent rows (or columns) from `first` on,
/// kDepth of depth from `depth_first` on; zeros beyond the block.
template <class Element, int kExtent, int kPitch>
__device__ void load_piece(const Element* block, std::int64_t extent_stride,
                           std::int64_t depth_stride, int first, int extent, int depth_first,
                           int depth, float (&to)[kExtent][kPitch]) {
  constexpr int kDepth = kPitch - 1;  // padded by one against bank conflicts
  // Adjacent threads read adjacent elements in memory.
  const bool along_depth = depth_stride == 1;
  for (int i = threadIdx.x; i < kExtent * kDepth; i += kThreads) {
    const int x = along_depth ? i / kDepth : i % kExtent;
    const int k = along_depth ? i % kDepth : i / kExtent;
    const bool inside = first + x < extent && depth_first + k < depth;
    to[x][k] = inside
                   ? to_float(block[(first + x) * extent_stride + (depth_first + k) * depth_stride])
                   : 0.0f;
  }
}

template <class Out>
__device__ void finish(const Arguments& args, std::int64_t element, float sum) {
  Out& to = static_cast<Out*>(args.out.data)[element];
  float value = args.alpha * sum;
  if (args.beta != 0.0f) value += args.beta * to_float(to);
  to = from_float<Out>(value);
}

/// Compile-time parameters of the kernel.
template <planning::Tile kTile, class ElementType>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
};

/// One CTA computes one piece of a stored block of the result at a time.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    general_kernel(const __grid_constant__ Arguments args) {
  using Element = typename T::Element;
  constexpr planning::Tile kTile = T::kShape;
  static_assert(kTile.m * kTile.n % kThreads == 0);
  constexpr int kSums = kTile.m * kTile.n / kThreads;
  __shared__ float left[kTile.m][kTile.k + 1], right[kTile.n][kTile.k + 1];
  __shared__ Pairs pairs;
  args.copy.run(blockIdx.x * kThreads + threadIdx.x, gridDim.x * kThreads);
  const int pieces = args.pieces_down * args.pieces_across;
  for (std::int64_t piece = blockIdx.x; piece < args.pieces; piece += gridDim.x) {
    const auto run = args.runs.run(static_cast<int>(piece / pieces), threadIdx.x % 32);
    if (run.size == 0) continue;
    const int place = static_cast<int>(piece % pieces);
    const int first_row = place / args.pieces_across * kTile.m;
    const int first_col = place % args.pieces_across * kTile.n;
    const Lists::Range row = args.a.range(run.row);
    const int column = args.runs.lists.indices[run.first];
    float sums[kSums] = {};
    for (int first = row.begin; first < row.end; first += kThreads) {
      find_pairs(args, first, row.end, column, pairs);
      for (int p = 0; p < pairs.count; ++p) {
        const auto* a =
            static_cast<const Element*>(args.left.data) + pairs.left[p] * args.left.block;
        const auto* b =
            static_cast<const Element*>(args.right.data) + pairs.right[p] * args.right.block;
        for (int depth = 0; depth < args.depth; depth += kTile.k) {
          load_piece(a, args.left.row, args.left.col, first_row, args.rows, depth, args.depth,
                     left);
          load_piece(b, args.right.col, args.right.row, first_col, args.cols, depth, args.depth,
                     right);
          __syncthreads();
#pragma unroll 8
          for (int k = 0; k < kTile.k; ++k) {
#pragma unroll
            for (int s = 0; s < kSums; ++s) {
              const int i = threadIdx.x + s * kThreads;
              sums[s] += left[i / kTile.n][k] * right[i % kTile.n][k];
            }
          }
          __syncthreads();
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      const int i = threadIdx.x + s * kThreads;
      const int r = first_row + i / kTile.n, c = first_col + i % kTile.n;
      if (r >= args.rows || c >= args.cols) continue;
      const std::int64_t element = run.first * args.out.block + r * args.out.row + c * args.out.col;
      switch (args.out.dtype) {
        case DType::f32:
          finish<float>(args, element, sums[s]);
          break;
        case DType::bf16:
          finish<__nv_bfloat16>(args, element, sums[s]);
          break;
        default:
          finish<__half>(args, element, sums[s]);
      }
    }
  }
}

}  // namespace tessera::cuda::spgemm
