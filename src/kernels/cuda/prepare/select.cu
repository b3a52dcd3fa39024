#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/common/scan.cuh"
#include "src/kernels/cuda/prepare/convert.hpp"
#include "src/kernels/cuda/prepare/keep.cuh"

// Selects blocks to keep. By count: the key of the smallest norm that is kept is found eleven bits
// at a time, from histograms; ties are kept in row order. Then, as for a threshold, rows are
// counted, offsets summed and lists filled.
namespace tessera::cuda {
namespace {

using planning::SelectCut;
using planning::SelectScratch;
using planning::SelectShape;

constexpr int kThreads = 256, kWarps = kThreads / kLanes;
constexpr int kBins = SelectScratch::kBins, kPasses = SelectScratch::kPasses;

/// Lowest bit, and number of bits, of the digit of a key that a pass counts.
__device__ constexpr int shift_of(int pass) { return pass == 0 ? 21 : pass == 1 ? 10 : 0; }
__device__ constexpr int bits_of(int pass) { return pass == 2 ? 10 : 11; }

/// The cut before the first pass; the final one where no passes are needed.
__device__ SelectCut first_cut(const SelectShape& s) {
  if (!s.by_count) return {s.above, 0};
  return s.keep == 0 ? SelectCut{kAllLanes, 0} : SelectCut{0, s.keep};
}
__device__ bool needs_passes(const SelectShape& s) { return s.by_count && s.keep > 0; }

/// Refines the cut by a pass's histogram: further bits of the key at the cut, and how many of the
/// keys with these bits are kept. Every CTA computes it; the first one stores it for later
/// launches. All threads call it.
__device__ SelectCut cut_after(const SelectShape& s, const SelectScratch& scratch, int pass) {
  if (!needs_passes(s)) return first_cut(s);
  const SelectCut known = pass == 0 ? first_cut(s) : scratch.cuts[pass - 1];
  constexpr int kEach = kBins / kThreads;
  __shared__ SelectCut cut;
  // Each thread takes adjacent bins, thread 0 the topmost ones.
  const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kEach;
  std::int64_t bins[kEach], sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    bins[i] = scratch.bins[pass * kBins + top - i];
    sum += bins[i];
  }
  std::int64_t before = exclusive_sum<kThreads>(sum).before;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    // True for one bin of one thread.
    if (before < known.ties && known.ties <= before + bins[i]) {
      cut = {known.key | static_cast<std::uint32_t>(top - i) << shift_of(pass),
             known.ties - before};
      if (blockIdx.x == 0) scratch.cuts[pass] = cut;
    }
    before += bins[i];
  }
  __syncthreads();
  return cut;
}
__device__ SelectCut final_cut(const SelectShape& s, const SelectScratch& scratch) {
  return needs_passes(s) ? scratch.cuts[kPasses - 1] : first_cut(s);
}

/// Returns a function from a column of `row` to its key.
__device__ auto keys_of(const SelectShape& s, std::int64_t row) {
  return [&s, row](std::int64_t col) {
    return planning::norm_key(static_cast<const float*>(s.norms.data)[s.norms.at(0, row, col)]);
  };
}

/// Calls `use(row)` for each row of this warp.
template <class Use>
__device__ void for_each_row(const SelectShape& s, const Use& use) {
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; i < s.rows;
       i += step)
    use(i);
}

/// Histogram of a pass: number of keys per value of the pass's bits, among the keys whose upper
/// bits equal those found so far.
__global__ void __launch_bounds__(kThreads, 4)
    histogram_kernel(SelectShape s, SelectScratch scratch, int pass) {
  __shared__ std::uint32_t counts[kBins];
  for (int i = threadIdx.x; i < kBins; i += kThreads) counts[i] = 0;
  const std::uint32_t found = (pass == 0 ? first_cut(s) : cut_after(s, scratch, pass - 1)).key;
  __syncthreads();
  const int shift = shift_of(pass), bits = bits_of(pass);
  for_each_row(s, [&](std::int64_t row) {
    for_each_key(s.cols, keys_of(s, row), [&](std::int64_t, std::uint32_t key, bool exists) {
      // Shifted in 64 bits, since the first pass has no upper bits (a shift by 32).
      const std::uint64_t upper = std::uint64_t{key ^ found} >> (shift + bits);
      const bool counts_here = exists && upper == 0;
      const unsigned bin = counts_here ? key >> shift & ((1u << bits) - 1) : kAllLanes;
      // Norms crowd into few bins: one lane adds all equal ones of the warp.
      const unsigned same = __match_any_sync(kAllLanes, bin);
      const bool leads =
          __ffs(static_cast<int>(same)) - 1 == static_cast<int>(threadIdx.x % kLanes);
      if (counts_here && leads) atomicAdd(&counts[bin], __popc(same));
    });
  });
  __syncthreads();
  auto* bins = reinterpret_cast<unsigned long long*>(scratch.bins) + pass * kBins;
  for (int i = threadIdx.x; i < kBins; i += kThreads)
    if (counts[i] != 0) atomicAdd(&bins[i], static_cast<unsigned long long>(counts[i]));
}

/// Counts, per row, the keys above the cut and the ties at it.
__global__ void __launch_bounds__(kThreads, 4) count_kernel(SelectShape s, SelectScratch scratch) {
  const SelectCut cut = cut_after(s, scratch, kPasses - 1);
  for_each_row(s, [&](std::int64_t row) {
    std::uint32_t larger = 0, ties = 0;
    for_each_key(s.cols, keys_of(s, row), [&](std::int64_t, std::uint32_t key, bool exists) {
      larger += exists && key > cut.key;
      ties += exists && key == cut.key;
    });
    larger = __reduce_add_sync(kAllLanes, larger);
    ties = __reduce_add_sync(kAllLanes, ties);
    if (threadIdx.x % kLanes == 0) {
      scratch.larger[row] = larger;
      scratch.ties[row] = ties;
    }
  });
}

/// Turns counts into offsets, in one CTA; each thread takes a range of rows. Overwrites `ties` with
/// how many of a row's ties are kept.
__global__ void __launch_bounds__(kThreads, 4)
    offsets_kernel(SelectShape s, SelectScratch scratch) {
  const SelectCut cut = final_cut(s, scratch);
  const std::int64_t each = (s.rows + kThreads - 1) / kThreads;
  const std::int64_t begin = planning::clamp_to(threadIdx.x * each, 0, s.rows);
  const std::int64_t end = planning::clamp_to(begin + each, 0, s.rows);
  std::int64_t ties = 0;
  for (std::int64_t i = begin; i < end; ++i) ties += scratch.ties[i];
  std::int64_t left = cut.ties - exclusive_sum<kThreads>(ties).before, chosen = 0;
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t there = scratch.ties[i];
    scratch.ties[i] = static_cast<std::uint32_t>(planning::clamp_to(left, 0, there));
    left -= there;
    chosen += scratch.larger[i] + scratch.ties[i];
  }
  const ExclusiveSum sum = exclusive_sum<kThreads>(chosen);
  std::int64_t at = sum.before;
  for (std::int64_t i = begin; i < end; ++i) {
    s.offsets.set(i, at < s.capacity ? at : s.capacity);
    at += scratch.larger[i] + scratch.ties[i];
  }
  if (threadIdx.x == 0) {
    s.offsets.set(s.rows, sum.total < s.capacity ? sum.total : s.capacity);
    s.count.set(0, sum.total);
  }
}

/// Writes the lists, one warp per row.
__global__ void __launch_bounds__(kThreads, 4) fill_kernel(SelectShape s, SelectScratch scratch) {
  const SelectCut cut = final_cut(s, scratch);
  const planning::Indices offsets = s.offsets;
  for_each_row(s, [&](std::int64_t row) {
    write_kept(s.cols, keys_of(s, row), {cut.key, scratch.ties[row]}, s.indices, offsets[row],
               s.capacity);
  });
}

}  // namespace

void select_blocks(const SelectShape& s, void* memory, const Place& place) {
  const DeviceGuard guard(place.device);
  core::Carver carver(memory);
  const SelectScratch scratch = planning::carve_select_scratch(carver, s.rows);
  // Each CTA reads the histograms again, so give every warp several rows.
  constexpr std::int64_t kMaxBlocks = 1024;
  const dim3 rows = grid_of(std::min((s.rows + kWarps - 1) / kWarps, kMaxBlocks));
  if (s.by_count) {
    check(cudaMemsetAsync(scratch.bins, 0, sizeof(std::uint64_t) * kBins * kPasses,
                          static_cast<cudaStream_t>(place.stream)),
          "cudaMemsetAsync");
    for (int pass = 0; pass < kPasses; ++pass)
      Kernel<histogram_kernel>::launch({"histogram_kernel", rows, kThreads, place.stream}, s,
                                       scratch, pass);
  }
  Kernel<count_kernel>::launch({"count_kernel", rows, kThreads, place.stream}, s, scratch);
  Kernel<offsets_kernel>::launch({"offsets_kernel", 1, kThreads, place.stream}, s, scratch);
  Kernel<fill_kernel>::launch({"fill_kernel", rows, kThreads, place.stream}, s, scratch);
}

}  // namespace tessera::cuda
