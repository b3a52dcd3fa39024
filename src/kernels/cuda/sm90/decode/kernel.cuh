#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/scan.cuh"
#include "src/kernels/cuda/sm90/decode/consumer.cuh"
#include "src/kernels/cuda/sm90/decode/producer.cuh"
#include "src/kernels/cuda/sm90/decode/traits.cuh"

// The kernel: initialises the barriers, computes the CTA's share of all pieces, and dispatches each
// warp to its role.
namespace tessera::cuda::sm90::decode {

template <class T>
__device__ void init_barriers(typename T::Shared& shared) {
  if (threadIdx.x == 0) {
    shared.tile_ring.init(T::kWarps);
    for (int stage = 0; stage < T::kStages; ++stage) {
      tile::ptx::mbarrier_init(&shared.k_full[stage], 1);
      tile::ptx::mbarrier_init(&shared.v_full[stage], 1);
      tile::ptx::mbarrier_init(&shared.empty[stage], T::kRowWarps);
    }
    tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
  }
}

/// Asks L2 for the line that holds `at`.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// Asks L2 for the lists of an entry, and for its sequence's page numbers. The producer reads them
/// one after the other, and under load each read from memory takes as long as several pieces.
template <class T>
__device__ __noinline__ void prefetch_lists(const Arguments& args, int strand, int entry) {
  constexpr int kMaxLines = 32;
  const planning::DecodeWalk& walk = args.walk;
  const int batch = walk.sets.quotient(entry);
  TileDescriptor tile{};
  describe_tile(walk, {batch, walk.first_group(walk.sets.rest(entry), strand), 0}, 0, tile);
  const planning::MaskView& mask = walk.mask;
  for (const planning::ListView* list : {&mask.full, &mask.partial}) {
    const planning::ListRow row =
        list->row(batch, tile.head / mask.group, tile.first_query / mask.block_q);
    const int per_line = row.indices.wide ? 16 : 32;
    const std::int64_t entries = min(row.size, std::int64_t{kMaxLines} * per_line);
    for (std::int64_t i = 0; i < entries; i += per_line) {
      const std::int64_t at = row.base + i * row.stride;
      row.indices.wide ? prefetch_l2(row.indices.wide + at) : prefetch_l2(row.indices.narrow + at);
    }
  }
  if (!args.pages.table) return;
  const std::int64_t pages = min(args.pages.max_pages, std::int64_t{kMaxLines} * 32);
  for (std::int64_t page = 0; page < pages; page += 32)
    prefetch_l2(args.pages.table + batch * args.pages.batch_stride +
                page * args.pages.entry_stride);
}

/// Counts the units of work of the CTA's strand, and finds the entry with which its share begins.
/// Each thread counts adjacent entries.
template <class T>
__device__ void find_share(const Arguments& args, typename T::Shared& shared) {
  const planning::DecodeWalk& walk = args.walk;
  const auto cta = static_cast<int>(blockIdx.x);
  const int strand = walk.strands.rest(cta);
  const typename T::Tiles tiles{walk, strand};
  const int entries = walk.entries();
  const int each = (entries + T::kThreads - 1) / T::kThreads;
  const int first = static_cast<int>(threadIdx.x) * each;
  std::int64_t mine = 0;
#pragma unroll 1
  for (int entry = first; entry < min(first + each, entries); ++entry) {
    const std::int64_t units = tiles.units(entry);
    if (entry < T::kCounted) shared.units[entry] = units;
    mine += units;
  }
  const ExclusiveSum sum = exclusive_sum<T::kThreads>(mine);
  const auto shares = planning::DecodeShares::of_strand(walk, strand, sum.total);
  const int in_strand = walk.strands.quotient(cta);
  const std::int64_t begin = shares.begin(in_strand), end = shares.begin(in_strand + 1);
  if (walk.mask.block_q != 0 && begin < sum.before + mine && sum.before < end)
    for (int entry = first; entry < min(first + each, entries); ++entry)
      prefetch_lists<T>(args, strand, entry);
  if (threadIdx.x == 0) shared.all_units = sum.total;
  // A CTA without a share begins anywhere.
  if (begin < sum.total ? sum.before <= begin && begin < sum.before + mine : threadIdx.x == 0) {
    shared.first_entry = first;
    shared.first_units = sum.before;
  }
  __syncthreads();
}

template <class T>
__global__ void __launch_bounds__(T::kThreads, 1)
    decode_kernel(const __grid_constant__ Arguments args) {
  extern __shared__ char raw[];
  auto& shared = tile::at_atom<typename T::Shared>(raw);
  init_barriers<T>(shared);
  if (threadIdx.x == 32) {
    tile::prefetch(args.k);
    tile::prefetch(args.v);
  }
  __syncthreads();
  let_next_grid_begin();
  wait_for_grid_before();
  // Of few entries the producer finds its share alone, while the other warps begin.
  if (args.walk.entries() > kLanes) find_share<T>(args, shared);
  if (threadIdx.x / 32 == T::kWarps) {
    Producer<T>{args, shared}.run();
    if (args.walk.packed_q) clear_rest(args.result, args.walk, threadIdx.x % 32);
  } else {
    Consumer<T>(args, shared).run();
  }
}

}  // namespace tessera::cuda::sm90::decode
