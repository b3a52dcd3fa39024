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
    shared.batch_ring.init(1);
    for (int stage = 0; stage < T::kStages; ++stage) {
      tile::ptx::mbarrier_init(&shared.k_full[stage], 1);
      tile::ptx::mbarrier_init(&shared.v_full[stage], 1);
      tile::ptx::mbarrier_init(&shared.empty[stage], T::kRowWarps);
    }
    tile::ptx::fence_mbarrier_init(tile::ptx::sem_release, tile::ptx::scope_cluster);
  }
}

/// Counts the units of work of the CTA's strand, and finds the entry with which its share begins.
/// Each thread counts adjacent entries. Returns the shares of the strand's CTAs.
template <class T>
__device__ planning::DecodeShares find_share(const Arguments& args, typename T::Shared& shared) {
  const planning::DecodeWalk& walk = args.walk;
  const auto cta = static_cast<int>(blockIdx.x);
  const int strand = walk.strands.rest(cta);
  const typename T::Tiles tiles{walk, strand};
  const int entries = walk.entries();
  const int each = (entries + T::kThreads - 1) / T::kThreads;
  const int first = static_cast<int>(threadIdx.x) * each;
  const int end = min(first + each, entries);
  std::int64_t mine = 0;
  const auto count = [&](int entry, std::int64_t units) {
    if (entry < T::kCounted) shared.units[entry] = units;
    mine += units;
  };
  if (tiles.have_one_list()) {
#pragma unroll 4
    for (int entry = first; entry < end; ++entry) count(entry, tiles.units_of_list(entry));
  } else {
#pragma unroll 1
    for (int entry = first; entry < end; ++entry) count(entry, tiles.units(entry));
  }
  const ExclusiveSum sum = exclusive_sum<T::kThreads>(mine);
  const auto shares = planning::DecodeShares::of_strand(walk, strand, sum.total);
  const int in_strand = walk.strands.quotient(cta);
  const std::int64_t begin = shares.begin(in_strand);
  // A CTA without a share begins anywhere.
  if (begin < sum.total ? sum.before <= begin && begin < sum.before + mine : threadIdx.x == 0) {
    shared.first_entry = first;
    shared.first_units = sum.before;
  }
  __syncthreads();
  return shares;
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
  // Of few entries the finder finds the share alone, while the other warps begin.
  planning::DecodeShares shares;
  if (args.walk.entries() > kLanes) shares = find_share<T>(args, shared);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < T::kWarps) {
    Consumer<T>(args, shared).run();
  } else if (warp == T::kWarps) {
    Finder<T>{args, shared}.run(shares);
  } else {
    Loader<T>{args, shared}.run();
    if (args.walk.packed_q) clear_rest(args.result, args.walk, threadIdx.x % 32);
  }
}

}  // namespace tessera::cuda::sm90::decode
