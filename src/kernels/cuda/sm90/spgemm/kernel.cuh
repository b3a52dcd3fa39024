#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/spgemm/store.cuh"
#include "src/kernels/cuda/sm90/spgemm/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"
#include "src/kernels/row.hpp"

// Two of the four producer warps match lists, each for every second tile; one loads A's blocks and
// one B's. The two consumer warpgroups multiply: each has slots (result blocks) of its own, or half
// of the rows if the tile is one slot.
namespace tessera::cuda::sm90::spgemm {

using tile::Major;

inline constexpr int kWarps = kWarpgroup / 32;
inline constexpr int kConsumers = 2;
inline constexpr int kMatchers = 2;
inline constexpr int kProducerWarps = 2;
inline constexpr int kThreads = (kConsumers + 1) * kWarpgroup;
// Two CTAs per SM: one stores or waits while the other multiplies.
inline constexpr int kBlocksPerSm = 2;
// setmaxnreg can only redistribute the registers at launch.
inline constexpr int kProducerRegisters = 48, kConsumerRegisters = 96, kLaunchRegisters = 80;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
              (kConsumers + 1) * kLaunchRegisters);
inline constexpr int kBatches = 2;  // per matcher

/// All compile-time constants and types of a kernel. A row's tile is one block of the result.
template <planning::Tile kTile, class ElementType, Major kA, Major kB>
struct Traits {
  using Element = ElementType;
  static constexpr planning::Tile kShape = kTile;
  static constexpr Major kMajorA = kA, kMajorB = kB;
  using ATile = tile::OperandTile<Element, kTile.m, kA>;
  using BTile = tile::OperandTile<Element, kTile.n, kB>;
  static_assert(kTile.k == tile::kLine && kTile.warpgroups == kConsumers);

  // A consumer holds two pieces of 64 x 64 sums: two slots, or half of the rows of one slot.
  static constexpr bool kCutM = kTile.m == 128;
  static constexpr int kPieces = 2, kPiecesPerSlot = kTile.n / 64;
  static constexpr int kOwnSlots = kPieces / kPiecesPerSlot;
  static constexpr int kSlots = kCutM ? kOwnSlots : kConsumers * kOwnSlots;
  static_assert(kOwnSlots >= 1 && (kTile.m == 64 || kTile.m == 128));
  using Steps = Batch<kSlots>;
  // The consumers share one ring of B if they share slots.
  static constexpr int kBRings = kCutM ? 1 : kConsumers;
  static __host__ __device__ constexpr int ring_of(int slot) { return slot % kBRings; }
  /// The slots of a ring, as a bitmask. Slots alternate between the rings, so that short runs keep
  /// both consumers busy.
  static __host__ __device__ constexpr std::uint32_t slots_of(int ring) {
    std::uint32_t bits = 0;
    for (int slot = ring; slot < kSlots; slot += kBRings) bits |= 1u << slot;
    return bits;
  }

  struct Shared {
    ATile a[kTile.stages];
    BTile b[kBRings][kTile.stages];
    StoreBuffers store[kConsumers];
    tile::RingBarriers<kTile.stages> a_ring;
    tile::RingBarriers<kTile.stages> b_rings[kBRings];
    tile::RingBarriers<kBatches> batch_rings[kMatchers];
    Steps batches[kMatchers][kBatches];
  };
  // The start of dynamic shared memory may have to be moved up to a 1024-byte boundary.
  static constexpr int kSharedBytes = sizeof(Shared) + tile::kAtomBytes;
};

struct Arguments {
  CUtensorMap a, b;
  Walk walk;
  cuda::spgemm::ListCopy copy;
  Result result;
  int runs = 0;                           // output tiles, including empty ones
  const PlannedBlock* planned = nullptr;  // tiles ordered by cost; null if not known
  int parts = 0;                          // depth of a block / kLine
};

/// The index, in the order of tiles, of this CTA's tile in a round.
__device__ __forceinline__ int place(int round) {
  return planning::spgemm::place_of(round, blockIdx.x, gridDim.x);
}

/// A reader's position in the batches of all matchers: tile by tile, matchers alternating. `counts`
/// has two bits per matcher: the number of batches read, modulo two rounds of its ring.
struct BatchCursor {
  static_assert(kBatches == 2);
  int matcher = 0;
  std::uint32_t counts = 0;

  __device__ int stage() const { return counts >> (2 * matcher) & 1; }
  __device__ std::uint32_t parity() const { return counts >> (2 * matcher + 1) & 1; }
  __device__ void advance(bool last) {
    const std::uint32_t mask = 3u << (2 * matcher);
    counts = (counts & ~mask) | ((counts + (1u << (2 * matcher))) & mask);
    if (last) matcher = matcher + 1 == kMatchers ? 0 : matcher + 1;
  }
};

/// A warp's walk over all batches of its CTA. Calls `use(batch, met)` per batch, where lane i has
/// the bitmask of slots that step i multiplies, and `done(first, slots)` after a tile's last batch.
template <class T, class Use, class Done>
__device__ __forceinline__ void for_each_batch(const Arguments& args, typename T::Shared& shared,
                                               int lane, const Use& use, const Done& done) {
  BatchCursor at;
  for (int round = 0; place(round) < args.runs; ++round) {
    bool last = false;
    int first = 0, slots = 0;
    while (!last) {
      auto& ring = shared.batch_rings[at.matcher];
      const typename T::Steps& batch = shared.batches[at.matcher][at.stage()];
      tile::wait(&ring.full[at.stage()], at.parity());
      const std::uint32_t met = lane < T::Steps::kSteps ? batch.met[lane] : 0;
      first = batch.first;
      slots = batch.slots;
      last = batch.last;
      use(batch, met);
      __syncwarp();
      if (lane == 0) tile::arrive(&ring.empty[at.stage()]);
      at.advance(last);
    }
    done(first, slots);
  }
}

/// A matcher warp: writes the batches of its tiles into its ring, ahead of the producers.
template <class T>
__device__ __forceinline__ void match_tiles(const Arguments& args, typename T::Shared& shared,
                                            int matcher, int lane) {
  auto& ring = shared.batch_rings[matcher];
  tile::RingCursor<kBatches> at;
  const ResultRuns<T::kSlots> runs{args.walk.result};
  const int slot = lane % T::kSlots;
  for (int round = matcher; place(round) < args.runs; round += kMatchers) {
    typename ResultRuns<T::kSlots>::Run run;
    int column;
    if (T::kSlots == 1 && args.planned) {
      const PlannedBlock block = args.planned[place(round)];
      run = {block.row, block.entry, 1};
      column = block.column;
    } else {
      run = runs.run(place(round), lane);
      column = slot < run.size ? args.walk.result.indices[run.first + slot] : -1;
    }
    // An empty tile walks nothing.
    const Lists::Range row = run.size > 0 ? args.walk.a.range(run.row) : Lists::Range{};
    int entry = row.begin;
    do {
      typename T::Steps& batch = shared.batches[matcher][at.stage];
      tile::wait(&ring.empty[at.stage], at.parity ^ 1);
      match(args.walk, entry, row.end - entry, column, lane, batch);
      entry += T::Steps::kSteps;
      if (lane == 0) {
        batch.slots = run.size;
        batch.first = run.first;
        batch.last = entry >= row.end;
      }
      __syncwarp();
      if (lane == 0) tile::arrive(&ring.full[at.stage]);
      at.advance();
    } while (entry < row.end);
  }
}

/// Loads kLine of a stored block's depth into a stage.
template <Major kMajor, class Stage>
__device__ __forceinline__ void load_stage(Stage& stage, const CUtensorMap& map, int depth,
                                           int block, std::uint64_t* full) {
  tile::arrive_expecting(full, Stage::kBytes);
  if constexpr (kMajor == Major::k) {
    tile::copy_box(stage.panel(0), map, depth, 0, block, full);
  } else {
    for (int p = 0; p < Stage::kPanels; ++p)
      tile::copy_box(stage.panel(p), map, p * tile::kLine, depth, block, full);
  }
}

/// The producer of A: loads the block of each step that has any match. Run by one warp.
template <class T>
__device__ __forceinline__ void load_left(const Arguments& args, typename T::Shared& shared,
                                          int lane) {
  const bool elected = tile::elect();  // the compiler then knows that one lane copies
  tile::RingCursor<T::kShape.stages> at;
  const auto use = [&](const typename T::Steps& batch, std::uint32_t met) {
    for (std::uint32_t steps = __ballot_sync(kAllLanes, met != 0); steps != 0; steps &= steps - 1) {
      const int block = batch.left[__ffs(steps) - 1];
      for (int part = 0; part < args.parts; ++part) {
        tile::wait(&shared.a_ring.empty[at.stage], at.parity ^ 1);
        if (elected)
          load_stage<T::kMajorA>(shared.a[at.stage], args.a, part * tile::kLine, block,
                                 &shared.a_ring.full[at.stage]);
        at.advance();
      }
    }
  };
  for_each_batch<T>(args, shared, lane, use, [](int, int) {});
}

/// The producer of B: loads the matching blocks in the order of steps and slots. Run by one warp.
template <class T>
__device__ __forceinline__ void load_right(const Arguments& args, typename T::Shared& shared,
                                           int lane) {
  const bool elected = tile::elect();  // the compiler then knows that one lane copies
  tile::RingCursor<T::kShape.stages> at[T::kBRings];
  const auto use = [&](const typename T::Steps& batch, std::uint32_t met) {
    for (std::uint32_t steps = __ballot_sync(kAllLanes, met != 0); steps != 0; steps &= steps - 1) {
      const int step = __ffs(steps) - 1;
      const std::uint32_t slots = __shfl_sync(kAllLanes, met, step);
      for (int part = 0; part < args.parts; ++part) {
#pragma unroll
        for (int slot = 0; slot < T::kSlots; ++slot) {
          if ((slots >> slot & 1) == 0) continue;
          auto& ring = shared.b_rings[T::ring_of(slot)];
          auto& to = at[T::ring_of(slot)];
          tile::wait(&ring.empty[to.stage], to.parity ^ 1);
          if (elected)
            load_stage<T::kMajorB>(shared.b[T::ring_of(slot)][to.stage], args.b, part * tile::kLine,
                                   batch.right[step][slot], &ring.full[to.stage]);
          to.advance();
        }
      }
    }
  };
  for_each_batch<T>(args, shared, lane, use, [](int, int) {});
}

/// A consumer's accumulators.
using Sums = float[2][32];

/// The stages that a consumer's MMAs in flight read; released when these MMAs are done.
template <class T>
struct Reading {
  int a = -1, b = -1;

  __device__ void release(typename T::Shared& shared, int ring, int lane) {
    if (lane == 0 && a >= 0) tile::arrive(&shared.a_ring.empty[a]);
    if (lane == 0 && b >= 0) tile::arrive(&shared.b_rings[ring].empty[b]);
    a = b = -1;
  }
};

/// One step of a consumer: A's stage times B's stage, for each of its slots with a match. The
/// step's last MMA stays in flight while the next step waits for its stages.
template <class T>
__device__ __forceinline__ void multiply_step(typename T::Shared& shared, int ring, int lane,
                                              std::uint32_t own, int a_stage, int a_first,
                                              tile::RingCursor<T::kShape.stages>& b_at,
                                              Reading<T>& reading, Sums& sum) {
  const std::uint64_t a = shared.a[a_stage].view(a_first);
#pragma unroll
  for (int slot = 0; slot < T::kOwnSlots; ++slot) {
    if ((own >> (slot * T::kBRings) & 1) == 0) continue;
    tile::wait(&shared.b_rings[ring].full[b_at.stage], b_at.parity);
    const std::uint64_t b = shared.b[ring][b_at.stage].view(0);
    tile::mma_fence();
#pragma unroll
    for (int k = 0; k < tile::kMmasPerLine; ++k)
#pragma unroll
      for (int piece = 0; piece < T::kPiecesPerSlot; ++piece)
        tile::mma<typename T::Element, 64, T::kMajorA, T::kMajorB>(
            sum[slot * T::kPiecesPerSlot + piece], a + k * T::ATile::kDepthStep,
            b + k * T::BTile::kDepthStep + piece * (T::BTile::kPanelBytes >> 4), false);
    tile::mma_commit();
    tile::mma_wait<1>();
    reading.release(shared, ring, lane);
    reading.b = b_at.stage;
    b_at.advance();
  }
  reading.a = a_stage;
}

/// Stores the consumer's blocks of a tile, or its rows of the block (from `row` on), and zeroes the
/// sums.
template <class T>
__device__ __forceinline__ void store_slots(const Result& result, StoreBuffers& buffers,
                                            int consumer, int thread, int first, int slots, int row,
                                            Sums& sum) {
  const auto block = [&](int piece) {
    const int own = piece / T::kPiecesPerSlot;
    const int slot = T::kCutM ? own : own * kConsumers + consumer;
    return slot < slots ? first + slot : -1;
  };
  const auto col = [](int piece) { return piece % T::kPiecesPerSlot * 64; };
  if (result.mapped) {
    if (thread == 0) wait_for_buffers();
    sync_consumer(consumer);
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
      if (block(piece) >= 0) fill_panel(result, sum[piece], buffers.panel[piece], thread);
    sync_panels(consumer);
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
      if (thread == 0 && block(piece) >= 0)
        store_panel(result.map, buffers.panel[piece], block(piece), row, col(piece));
  } else {
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
      if (block(piece) >= 0)
        store_elements(result, sum[piece], block(piece), row, col(piece), thread);
  }
#pragma unroll
  for (auto& piece : sum)
#pragma unroll
    for (float& value : piece) value = 0.0f;
}

/// A consumer warpgroup: multiplies and stores its part of all tiles of this CTA.
template <class T>
__device__ __forceinline__ void multiply_tiles(const Arguments& args, typename T::Shared& shared,
                                               int consumer, int thread) {
  const int lane = thread % 32;
  tile::RingCursor<T::kShape.stages> a_at;
  tile::RingCursor<T::kShape.stages> b_at;
  Reading<T> reading;
  Sums sum = {};
  const int ring = consumer % T::kBRings, row = T::kCutM ? consumer * 64 : 0;
  // Finishes all MMAs and releases their stages, before this consumer waits for stages that it does
  // not need.
  const auto drain = [&] {
    tile::mma_wait<0>();
    reading.release(shared, ring, lane);
  };
  const auto use = [&](const typename T::Steps&, std::uint32_t met) {
    for (std::uint32_t steps = __ballot_sync(kAllLanes, met != 0); steps != 0; steps &= steps - 1) {
      const std::uint32_t own =
          (__shfl_sync(kAllLanes, met, __ffs(steps) - 1) >> ring) & T::slots_of(0);
      for (int part = 0; part < args.parts; ++part, a_at.advance()) {
        if (own == 0) drain();
        tile::wait(&shared.a_ring.full[a_at.stage], a_at.parity);
        multiply_step<T>(shared, ring, lane, own, a_at.stage, row, b_at, reading, sum);
      }
    }
    drain();
  };
  const auto done = [&](int first, int slots) {
    store_slots<T>(args.result, shared.store[consumer], consumer, thread, first, slots, row, sum);
  };
  for_each_batch<T>(args, shared, lane, use, done);
  wait_for_buffers();  // before the CTA ends
}

/// Run by a producer warp before there is anything to load: prefetches the lists, and copies the
/// result's lists.
__device__ __forceinline__ void prefetch_lists(const Arguments& args, int thread, int threads) {
  for (const Lists* lists : {&args.walk.result, &args.walk.a, &args.walk.b.stored})
    cuda::spgemm::prefetch(*lists, thread, threads);
  args.copy.run(thread, threads);
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    spgemm_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<typename T::Shared>(raw);
  if (threadIdx.x == 0) {
    for (const CUtensorMap* map : {&args.a, &args.b, &args.result.map}) tile::prefetch(*map);
    shared.a_ring.init(kConsumers * kWarps);
    for (auto& ring : shared.b_rings) ring.init(kConsumers / T::kBRings * kWarps);
    // Batches are read by all consumer warps and both producers.
    for (auto& ring : shared.batch_rings) ring.init(kConsumers * kWarps + kProducerWarps);
  }
  __syncthreads();
  const int warpgroup = threadIdx.x / kWarpgroup, lane = threadIdx.x % 32;
  const int warp = threadIdx.x % kWarpgroup / 32;
  if (warpgroup < kConsumers) {
    cutlass::arch::warpgroup_reg_alloc<kConsumerRegisters>();
    multiply_tiles<T>(args, shared, warpgroup, threadIdx.x % kWarpgroup);
    return;
  }
  cutlass::arch::warpgroup_reg_dealloc<kProducerRegisters>();
  if (warp < kMatchers) {
    match_tiles<T>(args, shared, warp, lane);
  } else if (warp == kMatchers) {
    load_right<T>(args, shared, lane);
  } else {
    prefetch_lists(args, blockIdx.x * 32 + lane, gridDim.x * 32);
    load_left<T>(args, shared, lane);
  }
}

}  // namespace tessera::cuda::sm90::spgemm
