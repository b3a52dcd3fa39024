#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/cuda/sm90/bsr/walk.cuh"
#include "src/cuda/sm90/product/epilogue.cuh"
#include "src/cuda/tile/barrier.cuh"
#include "src/cuda/tile/copy.cuh"
#include "src/cuda/tile/wgmma.cuh"
#include "src/plan/tile_table.hpp"

// Several lines of blocks share what they read of the dense matrix. The dense columns are the M
// side of wgmma, a line of blocks is its N side, which may be as low as 16. A step loads 64 of
// depth of the dense matrix and those blocks of the tile's lines that lie there; what no line
// stores is neither loaded nor multiplied.
namespace tessera::cuda::sm90::bsr {

using tile::Major;

inline constexpr int kWarpgroup = 128;
inline constexpr int kUnit = 16;                    // depth of one wgmma
inline constexpr int kUnits = tile::kLine / kUnit;  // in a step

/// Everything a kernel is compiled for.
template <planning::Tile kTile, class ElementType, int kLineHeight, Major kDense, Major kBlocks>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr int kHeight = kLineHeight;
  static constexpr int kLines = kTile.m / kHeight;
  static constexpr Major kMajorDense = kDense, kMajorBlocks = kBlocks;
  static constexpr int kConsumers = kTile.warpgroups;
  static_assert(kTile.k == tile::kLine && kTile.n == 64 * kConsumers);
  static_assert(kTile.stages % (kTile.m == 256 ? 4 : 1) == 0);  // a stage has one loader
  static_assert(kTile.m % kHeight == 0 && kLines * kUnits <= 64);
  // Registers move from the loader to the consumers where these need many.
  static constexpr bool kMoveRegisters = kTile.m == 256;
  // Together no more than a block of threads starts with: asking for more never returns.
  static constexpr int kLoaderRegisters = kConsumers == 2 ? 72 : 56;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 216 : 152;
  static constexpr int kBlocksAtOnce = kMoveRegisters ? 1 : 3;  // of threads, on one SM
  // Only a whole warpgroup can give registers away.
  static constexpr int kLoaders = kMoveRegisters ? 4 : 1;  // warps
  static constexpr int kThreads = kConsumers * kWarpgroup + kLoaders * 32;

  using DenseTile = tile::OperandTile<Element, kTile.n, kDense>;
  /// Room for every piece of a step: of line l, 16-deep unit u.
  struct alignas(tile::kAtomBytes) Pieces {
    Element data[kTile.m * tile::kLine];
  };
  /// What of a step is there.
  struct Step {
    std::uint32_t units[2];  // bit 4 * (l % 8) + u of word l / 8: line l has unit u
    bool last;               // of its tile
  };
  struct Shared {
    DenseTile dense[kTile.stages];
    Pieces pieces[kTile.stages];
    tile::RingBarriers<kTile.stages> ring;
    Step steps[kTile.stages];
  };
  static constexpr int kUnitBytes = kHeight * kUnit * 2;
  // The base of dynamic shared memory may have to move up to an atom's boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
};

struct Arguments {
  CUtensorMap dense, blocks;
  Walk walk;
  product::Finish finish;
  int rows;   // of the result
  int tiles;  // output tiles in all
};

/// How pieces lie in shared memory. A line of memory is a piece's depth, or its height where the
/// values are stored the other way round (two panels where that is 128).
template <class T>
struct PieceLayout {
  static constexpr bool kDeep = T::kMajorBlocks == Major::k;
  static constexpr int kWidth = T::kHeight < tile::kLine ? T::kHeight : tile::kLine;  // of a panel
  int piece;

  __device__ int line_bytes() const { return 2 * (kDeep ? piece : kWidth); }
  __device__ int piece_bytes() const { return 2 * T::kHeight * piece; }
  __device__ int panel_bytes() const { return 2 * kWidth * piece; }
  __device__ std::uint64_t view(const typename T::Pieces& pieces) const {
    return tile::descriptor(pieces.data, kDeep ? 0 : panel_bytes(), 8 * line_bytes(), line_bytes());
  }
  /// Where a unit of the first line begins, in descriptor units of 16 bytes.
  __device__ std::uint32_t unit(int u) const {
    const int per_piece = piece / kUnit;
    const int within = kDeep ? 2 * kUnit : kUnit * line_bytes();
    return static_cast<std::uint32_t>(u / per_piece * piece_bytes() + u % per_piece * within) >> 4;
  }
};

/// One step of the dense matrix, by one lane.
template <class T>
__device__ __forceinline__ void load_dense(const Arguments& args, typename T::DenseTile& to,
                                           const TileAt& tile, int step, std::uint64_t* full) {
  const int depth = step * tile::kLine, matrix = tile.batch * args.walk.dense_batch_step;
  if constexpr (T::kMajorDense == Major::k) {
    tile::copy_box(to.panel(0), args.dense, depth, tile.col, matrix, full);
  } else {
    for (int p = 0; p < T::DenseTile::kPanels; ++p)
      tile::copy_box(to.panel(p), args.dense, tile.col + p * tile::kLine, depth, matrix, full);
  }
}

/// One warp: lane l walks the list of line l, all agree on the next step, each loads its pieces. A
/// step takes a warp longer than it may: the loaders take turns, each walks all lists but loads
/// every kLoaders-th step only.
template <class T>
__device__ __forceinline__ void load_tiles(const Arguments& args, typename T::Shared& shared,
                                           int loader, int lane) {
  constexpr std::uint32_t kAll = 0xFFFFFFFFu;
  constexpr int kHalf = 8;  // lines of one word of the mask
  tile::RingCursor<T::kShape.stages> at;
  const Walk& walk = args.walk;
  const PieceLayout<T> layout{walk.piece};
  const int units_per_piece = walk.piece / kUnit;
  int turn = 0;
  for (int index = blockIdx.x; index < args.tiles; index += gridDim.x) {
    const TileAt tile = walk.template tile<T::kLines, T::kShape.n>(index);
    LineWalk line(walk, tile, lane, T::kLines);
    const int row_in_block = (tile.line + lane) % walk.lines_per_block * T::kHeight;
    const int pool = tile.batch * walk.pool_step;
    int step = __reduce_min_sync(kAll, line.step());
    do {
      const bool ours = turn == loader;
      turn = turn + 1 == T::kLoaders ? 0 : turn + 1;
      if (!ours) {
        while (step != LineWalk::kEnd && line.step() == step) line.advance();
        step = __reduce_min_sync(kAll, line.step());
        at.advance();
        continue;
      }
      tile::wait(&shared.ring.empty[at.stage], at.parity ^ 1);
      std::uint64_t* full = &shared.ring.full[at.stage];
      const bool empty = step == LineWalk::kEnd;
      if (lane == 0 && !empty) load_dense<T>(args, shared.dense[at.stage], tile, step, full);
      std::uint32_t units = 0;
      char* const mine = reinterpret_cast<char*>(shared.pieces[at.stage].data) +
                         lane * T::kHeight * tile::kLineBytes;
      while (!empty && line.step() == step) {
        const int slice = line.slice();
        if (units >> slice * units_per_piece & 1) {  // named twice: bytes nobody waits for
          line.advance();
          continue;
        }
        char* const to = mine + slice * layout.piece_bytes();
        const int depth = line.part() * walk.piece, block = line.stored() + pool;
        if constexpr (T::kMajorBlocks == Major::k) {
          tile::copy_box(to, args.blocks, depth, row_in_block, block, full);
        } else {
          for (int p = 0; p * layout.kWidth < T::kHeight; ++p)
            tile::copy_box(to + p * layout.panel_bytes(), args.blocks,
                           row_in_block + p * layout.kWidth, depth, block, full);
        }
        units |= ((1u << units_per_piece) - 1) << slice * units_per_piece;
        line.advance();
      }
      const std::uint32_t placed = units << lane % kHalf * kUnits;
      const std::uint32_t low = __reduce_or_sync(kAll, lane < kHalf ? placed : 0);
      const std::uint32_t high = __reduce_or_sync(kAll, lane < kHalf ? 0 : placed);
      step = __reduce_min_sync(kAll, line.step());
      if (lane == 0) {
        shared.steps[at.stage] = {{low, high}, step == LineWalk::kEnd};
        const int bytes = (__popc(low) + __popc(high)) * T::kUnitBytes;
        tile::arrive_expecting(full, empty ? 0 : T::DenseTile::kBytes + bytes);
      }
      __syncwarp();
      at.advance();
    } while (step != LineWalk::kEnd);
  }
}

/// One warpgroup: 64 columns of every line of each tile.
template <class T>
__device__ __forceinline__ void multiply_tiles(const Arguments& args, typename T::Shared& shared,
                                               int consumer, int thread) {
  constexpr int kLineSums = T::kHeight / 2;
  constexpr std::uint64_t kNextLine = T::kHeight * tile::kLineBytes >> 4;
  tile::RingCursor<T::kShape.stages> at;
  const PieceLayout<T> layout{args.walk.piece};
  std::uint32_t unit_at[kUnits];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) unit_at[u] = layout.unit(u);
  // Each warp for itself: a step that multiplies nothing does not hold the warps together.
  const auto give_back = [&](int stage) {
    __syncwarp();
    if (thread % 32 == 0) tile::arrive(&shared.ring.empty[stage]);
  };
  for (int index = blockIdx.x; index < args.tiles; index += gridDim.x) {
    const TileAt tile = args.walk.template tile<T::kLines, T::kShape.n>(index);
    float sum[T::kShape.m / 2];
#pragma unroll
    for (float& value : sum) value = 0.0f;
    bool last = false;
    int previous = -1;
    do {
      tile::wait(&shared.ring.full[at.stage], at.parity);
      const typename T::Step step = shared.steps[at.stage];
      const std::uint32_t words[2] = {__shfl_sync(0xFFFFFFFFu, step.units[0], 0),
                                      __shfl_sync(0xFFFFFFFFu, step.units[1], 0)};
      last = step.last;
      const std::uint64_t a = shared.dense[at.stage].view(consumer * 64);
      const std::uint64_t b = layout.view(shared.pieces[at.stage]);
      tile::mma_fence();
#pragma unroll
      for (int l = 0; l < T::kLines; ++l) {
        auto& part = reinterpret_cast<float(&)[kLineSums]>(sum[l * kLineSums]);
        const std::uint32_t units = words[l / 8] >> l % 8 * kUnits;
        if ((units & ((1u << kUnits) - 1)) == 0) continue;
#pragma unroll
        for (int u = 0; u < kUnits; ++u)
          if (units >> u & 1)
            tile::mma<typename T::Element, T::kHeight, T::kMajorDense, T::kMajorBlocks>(
                part, a + u * T::DenseTile::kDepthStep, b + l * kNextLine + unit_at[u], false);
      }
      tile::mma_commit();
      // The step before this one is done: its stage is free.
      tile::mma_wait<1>();
      if (previous >= 0) give_back(previous);
      previous = at.stage;
      at.advance();
    } while (!last);
    tile::mma_wait<0>();
    give_back(previous);
    product::store_tile<T::kShape.m>(args.finish, sum, tile.col + consumer * 64,
                                     tile.line * T::kHeight, tile.batch, args.walk.cols, args.rows,
                                     thread);
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksAtOnce)
    bsr_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<typename T::Shared>(raw);
  if (threadIdx.x == 0) shared.ring.init(T::kConsumers * kWarpgroup / 32);
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == T::kConsumers) {
    if constexpr (T::kMoveRegisters) cutlass::arch::warpgroup_reg_dealloc<T::kLoaderRegisters>();
    const int thread = threadIdx.x - T::kConsumers * kWarpgroup;
    load_tiles<T>(args, shared, thread / 32, thread % 32);
  } else {
    if constexpr (T::kMoveRegisters) cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    multiply_tiles<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup);
  }
}

}  // namespace tessera::cuda::sm90::bsr
