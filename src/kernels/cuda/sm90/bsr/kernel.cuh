#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/bsr/pieces.cuh"
#include "src/kernels/cuda/sm90/bsr/store.cuh"
#include "src/kernels/cuda/sm90/bsr/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"
#include "src/kernels/row.hpp"

// Products with one sparse side in small blocks: several lines of blocks share the loads of the
// dense matrix. The dense columns are the M side of wgmma, 64 rows of the result its N side. A step
// loads 64 of depth of the dense matrix, and those units (64 rows x 16 of depth) of the sparse one
// in which any line has a stored block. The part of a unit where a line has none is filled with
// zeros; other units are neither loaded nor multiplied.
namespace tessera::cuda::sm90::bsr {

using tile::Major;

inline constexpr int kWarpgroup = 128;

/// Named barriers; 0 is __syncthreads.
enum NamedBarrier : int {
  kProducerBarrier = 1,  // all producer warps
  kStoreBarrier = 2      // one per consumer: + consumer
};

/// What a stage holds.
struct Step {
  static constexpr std::uint32_t kLast = 1u << 31;
  /// Bit 4 * g + u: unit u of group g has values. kLast: the step after a tile's last one.
  std::uint32_t units;
  /// Offsets in shared memory, in units of 16 bytes. Lower half: of the first unit's slot; upper
  /// half: of the stage's dense tile.
  std::uint32_t place;
};

/// All compile-time constants and types of a kernel.
template <planning::Tile kTile, class ElementType, Major kDense, Major kBlocks>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr Major kMajorDense = kDense, kMajorBlocks = kBlocks;
  static constexpr int kGroups = kTile.m / kGroup;
  static constexpr int kConsumers = kTile.warpgroups;
  static_assert(kTile.k == tile::kLine && kTile.n == 64 * kConsumers && kTile.m % kGroup == 0);
  // The large tile moves registers from the producers to the consumers (setmaxnreg).
  static constexpr bool kLarge = kConsumers == 2;
  // setmaxnreg never returns if the total exceeds the registers at launch.
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr int kBlocksAtOnce = kLarge ? 1 : 3;  // thread blocks per SM
  // Copier warps; the finder warp follows them. Together a whole warpgroup where registers are
  // moved, as setmaxnreg requires.
  static constexpr int kCopiers = kLarge ? 3 : 1;
  static constexpr int kProducerWarps = kCopiers + 1;
  static constexpr int kThreads = kConsumers * kWarpgroup + kProducerWarps * 32;

  using DenseTile = tile::OperandTile<Element, kTile.n, kDense>;
  /// The memory of one unit. Major::k: lines of 16 elements with the 32-byte swizzle; Major::mn:
  /// lines of 64.
  struct alignas(tile::kAtomBytes) Slot {
    Element data[kGroup * kUnit];
  };
  static constexpr int kSlots = kLarge ? 64 : 16;
  /// kTmaGroups: groups per consumer that TMA stores through lent slots at the same time.
  /// kLentSums: sums per thread that are parked in lent slots where TMA does not store.
  static constexpr int kTmaGroups = kGroups < 3 ? kGroups : 3;
  static constexpr int kLentSums = kGroups > 4 ? kGroup / 2 : 0;
  static constexpr int kLentSlots = kTmaGroups * kUnits * kConsumers;
  static_assert(kLentSums * kWarpgroup * 4 <= kLentSlots / kConsumers * int{sizeof(Slot)});
  // A step is released only after the next one has arrived, so the slots must hold two.
  static_assert(kSlots >= 2 * kGroups * kUnits && (kSlots & (kSlots - 1)) == 0);
  struct Shared {
    DenseTile dense[kTile.stages];
    Slot slots[kSlots];
    Window<kGroups> windows[2];
    tile::RingBarriers<kTile.stages> ring;
    Step steps[kTile.stages];
  };
  // The start of dynamic shared memory may have to be moved up to a 1024-byte boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
};

struct Arguments {
  CUtensorMap dense, blocks, out;  // blocks: if TMA loads units; out: if TMA stores
  Walk walk;
  product::Finish finish;
  TmaStore tma_store;
  int rows;   // rows of the result
  int tiles;  // output tiles
};

/// Loads one step of the dense matrix. Called by one lane.
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

/// Synchronises the producer warps: a window must be complete before it is copied.
template <class T>
__device__ __forceinline__ void sync_producers() {
  asm volatile("bar.sync %0, %1;" ::"n"(int{kProducerBarrier}), "n"(T::kProducerWarps * 32)
               : "memory");
}

/// The finder warp: fills the windows of all tiles of this CTA, one window ahead of the copiers.
template <class T>
__device__ __forceinline__ void find_tiles(const Arguments& args, typename T::Shared& shared,
                                           int lane) {
  const Walk& walk = args.walk;
  const int steps = Window<T::kGroups>::steps(walk);
  int buffer = 0;
  for (int index = blockIdx.x; index < args.tiles; index += gridDim.x) {
    Finder<T::kGroups> finder(walk, walk.template tile<T::kShape.m, T::kShape.n>(index), lane);
    for (int first = 0; first < walk.steps; first += steps, buffer ^= 1) {
      finder.find(shared.windows[buffer], first);
      sync_producers<T>();
    }
  }
}

/// Waits until the next stage and the slots of `count` units are free. Where steps hold many units,
/// slots run out before stages do. `history`: number of units of each earlier step, one byte per
/// step.
template <class T>
__device__ __forceinline__ void wait_for_room(tile::RingBarriers<T::kShape.stages>& ring,
                                              const tile::RingCursor<T::kShape.stages>& at,
                                              std::uint32_t history, int count) {
  constexpr int kStages = T::kShape.stages;
  tile::wait(&ring.empty[at.stage], at.parity ^ 1);
  // `history` covers four earlier steps; the stages hold no more besides this one.
  static_assert(kStages <= 5);
  int used = __dp4a(history, 0x01010101u, 0u);
#pragma unroll 1
  for (int back = 4; used + count > T::kSlots; --back) {
    const bool wrapped = at.stage < back;
    if (back < kStages)
      tile::wait(&ring.empty[at.stage - back + (wrapped ? kStages : 0)],
                 at.parity ^ (wrapped ? 1 : 0));
    used -= history >> 8 * (back - 1) & 0xFF;
  }
}

/// Copier warps per group; the groups take steps in rotation. With pieces 16 deep, a step has many
/// pieces: then all copiers form one group and share each step, so that steps arrive sooner and
/// fewer slots are occupied by incomplete steps.
template <class T>
__device__ __forceinline__ int copiers_per_group(const Walk& walk) {
  return walk.slice_shift == 2 && !walk.boxed ? T::kCopiers : 1;
}

/// A copier warp: copies its share of the units of its group's steps; the first copier of a group
/// also loads the dense matrix. The last step of a tile loads nothing; its slots are lent to the
/// consumers for storing.
template <class T>
__device__ __forceinline__ void copy_tiles(const Arguments& args, typename T::Shared& shared,
                                           int copier, int lane) {
  constexpr std::uint32_t kSlotUnits = sizeof(typename T::Slot) >> 4;
  constexpr std::uint32_t kStageUnits = T::DenseTile::kBytes >> 4;
  const Walk& walk = args.walk;
  const UnitCopy<T> copy(walk, lane);
  const std::uint32_t slots = tile::shared_address(shared.slots);
  const int steps = Window<T::kGroups>::steps(walk), size = copiers_per_group<T>(walk);
  // Number of steps until this warp's next step, and between its steps.
  int until_next = copier / size;
  const int groups = T::kCopiers / size;
  std::uint32_t mine = 0;  // the first units of the pieces that this copier copies
  for (int g = copier % size; g < T::kGroups; g += size) mine |= 0xFu << g * kUnits;
  mine &= piece_heads(walk);
  // elect.sync once, and branch on its result alone: with `lane == 0`, or a larger condition, the
  // compiler puts a loop over lanes around every TMA copy.
  const bool elected = tile::elect(), first_of_group = copier % size == 0;
  tile::RingCursor<T::kShape.stages> at;
  std::uint32_t slot = 0, history = 0;
  const auto put = [&](std::uint32_t units) {
    shared.steps[at.stage] = {units, slot * kSlotUnits | at.stage * kStageUnits << 16};
  };
  const auto next = [&](int count) {
    slot = (slot + count) & (T::kSlots - 1);
    history = history << 8 | count;
    at.advance();
    until_next = until_next == 0 ? groups - 1 : until_next - 1;
  };
  int buffer = 0;
  for (int index = blockIdx.x; index < args.tiles; index += gridDim.x) {
    const TileAt tile = walk.template tile<T::kShape.m, T::kShape.n>(index);
    for (int first = 0; first < walk.steps; first += steps, buffer ^= 1) {
      sync_producers<T>();
      const Window<T::kGroups>& window = shared.windows[buffer];
      const int count = window.count;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const typename Window<T::kGroups>::FilledStep step = window.filled[i];
        if (until_next == 0) {
          wait_for_room<T>(shared.ring, at, history, step.count);
          std::uint64_t* const full = &shared.ring.full[at.stage];
          const uint4* const pieces = window.pieces[step.step << walk.slice_shift];
          if (first_of_group) {
            if (elected) {
              put(step.units);
              const int bytes = walk.boxed ? step.count * int{sizeof(typename T::Slot)} : 0;
              tile::arrive_expecting(full, T::DenseTile::kBytes + bytes);
              load_dense<T>(args, shared.dense[at.stage], tile, first + step.step, full);
              if (walk.boxed)
                copy_boxes<T>(args.blocks, walk, shared.slots, pieces, step.units, slot, full);
            }
          }
          __syncwarp();
          if (!walk.boxed) {
            copy_units<T>(walk, copy, slots, pieces, step.units, mine, slot);
            tile::arrive_when_copied(full);
          }
        }
        next(step.count);
      }
    }
    if (until_next == 0) {
      wait_for_room<T>(shared.ring, at, history, T::kLentSlots);
      if (first_of_group && elected) {
        put(Step::kLast);
        tile::arrive(&shared.ring.full[at.stage]);
      }
      __syncwarp();
      if (!walk.boxed) tile::arrive(&shared.ring.full[at.stage]);
    }
    next(T::kLentSlots);
  }
}

/// A wgmma descriptor whose lower half (the address) is kept in a register; otherwise the compiler
/// recomputes it at every use.
struct View {
  std::uint64_t upper;
  std::uint32_t lower;

  __device__ explicit View(std::uint64_t descriptor)
      : upper(descriptor >> 32 << 32), lower(static_cast<std::uint32_t>(descriptor)) {
    lower = __shfl_sync(kAllLanes, lower, 0);
  }
  __device__ std::uint64_t at(std::uint32_t offset) const { return upper | (lower + offset); }
};

/// Multiplies a tile's steps, kPieceUnits units at a time. Returns the `place` of the last step,
/// which lends its slots. A step's stage is released after the next step has arrived.
template <class T, int kPieceUnits, bool kBoxed>
__device__ __forceinline__ std::uint32_t multiply_steps(float (&sum)[T::kShape.m / 2],
                                                        typename T::Shared& shared,
                                                        tile::RingCursor<T::kShape.stages>& at,
                                                        const View& dense) {
  constexpr int kGroupSums = kGroup / 2, kSlotUnits = sizeof(typename T::Slot) >> 4;
  // Layout of a piece's units. Major::k: one after the other in lines of 16 elements, or, loaded by
  // TMA, side by side in lines as long as the piece is deep. Major::mn: one after the other in
  // lines of 64.
  constexpr bool kDeep = T::kMajorBlocks == Major::k;
  constexpr int kLineBytes = kBoxed ? kPieceUnits * 32 : 32;
  constexpr int kNextUnit = kDeep && kBoxed ? 2 : kSlotUnits;
  const View slots(kDeep ? tile::descriptor(shared.slots, 0, 8 * kLineBytes, kLineBytes)
                         : tile::descriptor(shared.slots, 0, tile::kAtomBytes));
  int previous = -1;
  while (true) {
    tile::wait(&shared.ring.full[at.stage], at.parity);
    const Step step = shared.steps[at.stage];
    const std::uint32_t units = __shfl_sync(kAllLanes, step.units, 0);
    const std::uint32_t place = __shfl_sync(kAllLanes, step.place, 0);
    // Makes copies by cp.async visible to wgmma.
    if constexpr (!kBoxed) tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    tile::mma_wait<0>();
    // Each warp arrives on its own: a step that multiplies nothing does not synchronise the warps.
    __syncwarp();
    if (previous >= 0 && tile::elect()) tile::arrive(&shared.ring.empty[previous]);
    if (units == Step::kLast) return place;
    std::uint32_t slot = place & 0xFFFF;
    const std::uint32_t stage = place >> 16;
#pragma unroll
    for (int g = 0; g < T::kGroups; ++g) {
      auto& part = reinterpret_cast<float(&)[kGroupSums]>(sum[g * kGroupSums]);
#pragma unroll
      for (int first = 0; first < kUnits; first += kPieceUnits) {
        if (!(units >> (g * kUnits + first) & 1)) continue;
        slot &= T::kSlots * kSlotUnits - 1;
        tile::mma_fence();
#pragma unroll
        for (int u = 0; u < kPieceUnits; ++u)
          tile::mma<typename T::Element, kGroup, T::kMajorDense, T::kMajorBlocks>(
              part, dense.at(stage + (first + u) * T::DenseTile::kDepthStep),
              slots.at(slot + u * kNextUnit), false);
        slot += kPieceUnits * kSlotUnits;
        tile::mma_commit();
      }
    }
    previous = at.stage;
    at.advance();
  }
}

/// Stores a consumer's part of a tile, through TMA or from registers, using the slots that the last
/// step lends.
template <class T>
__device__ __forceinline__ void store_sums(const Arguments& args, typename T::Shared& shared,
                                           float (&sum)[T::kShape.m / 2], int index, int slot,
                                           int consumer, int thread) {
  const TileAt tile = args.walk.template tile<T::kShape.m, T::kShape.n>(index);
  const int row = tile.col + consumer * 64, col = tile.line << args.walk.height_shift;
  const Lent<typename T::Slot, T::kSlots> lent{shared.slots,
                                               slot + consumer * (T::kLentSlots / T::kConsumers)};
  if (args.tma_store == TmaStore::none)
    return store_groups<T::kGroups, T::kLentSums>(args.finish, lent, sum, row, col, tile.batch,
                                                  args.walk.cols, args.rows, thread);
  const auto store = [&]<DType kOut, bool kTransposed>() {
    store_by_tma<kOut, kTransposed, T::kGroups, T::kTmaGroups>(
        args.out, lent, sum, row, col, tile.batch, thread, kStoreBarrier + consumer);
  };
  const bool transposed = args.tma_store == TmaStore::by_columns;
  if (args.finish.out.dtype == DType::bf16) {
    transposed ? store.template operator()<DType::bf16, true>()
               : store.template operator()<DType::bf16, false>();
  } else {
    transposed ? store.template operator()<DType::f16, true>()
               : store.template operator()<DType::f16, false>();
  }
}

/// A consumer warpgroup: 64 columns of all rows of each tile.
template <class T>
__device__ __forceinline__ void multiply_tiles(const Arguments& args, typename T::Shared& shared,
                                               int consumer, int thread) {
  tile::RingCursor<T::kShape.stages> at;
  const View dense(shared.dense[0].view(consumer * 64));
  for (int index = blockIdx.x; index < args.tiles; index += gridDim.x) {
    float sum[T::kShape.m / 2];
#pragma unroll
    for (float& value : sum) value = 0.0f;
    std::uint32_t place = 0;
    const auto multiply = [&]<int kPieceUnits>() {
      place = kPieceUnits > 1 && args.walk.boxed
                  ? multiply_steps<T, kPieceUnits, true>(sum, shared, at, dense)
                  : multiply_steps<T, kPieceUnits, false>(sum, shared, at, dense);
    };
    if (args.walk.slice_shift == 0) {
      multiply.template operator()<4>();
    } else if (args.walk.slice_shift == 1) {
      multiply.template operator()<2>();
    } else {
      multiply.template operator()<1>();
    }
    const int slot = (place & 0xFFFF) / (sizeof(typename T::Slot) >> 4);
    store_sums<T>(args, shared, sum, index, slot, consumer, thread);
    // TMA may write to these slots next: order it after the accesses above.
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    __syncwarp();
    if (tile::elect()) tile::arrive(&shared.ring.empty[at.stage]);
    at.advance();
  }
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, T::kBlocksAtOnce)
    bsr_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<typename T::Shared>(raw);
  // Arrivals at `full`: the lane that announces the bytes of TMA, and all lanes of the warps that
  // copy units by cp.async.
  if (threadIdx.x == 0)
    shared.ring.init(T::kConsumers * kWarpgroup / 32,
                     args.walk.boxed ? 1 : 1 + copiers_per_group<T>(args.walk) * 32);
  wait_for_grid_before();
  let_next_grid_begin();
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup;
  if (warpgroup == T::kConsumers) {
    if constexpr (T::kLarge) cutlass::arch::warpgroup_reg_dealloc<T::kProducerRegisters>();
    const int producer = threadIdx.x % kWarpgroup / 32, lane = threadIdx.x % 32;
    if (producer == T::kCopiers) {
      find_tiles<T>(args, shared, lane);
    } else {
      copy_tiles<T>(args, shared, producer, lane);
    }
  } else {
    if constexpr (T::kLarge) cutlass::arch::warpgroup_reg_alloc<T::kConsumerRegisters>();
    multiply_tiles<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup);
  }
}

}  // namespace tessera::cuda::sm90::bsr
