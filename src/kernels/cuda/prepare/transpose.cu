#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/common/scan.cuh"
#include "src/kernels/cuda/prepare/convert.hpp"

// Transposes lists: a counting sort by column that keeps the order of rows, whatever order threads
// run in. In a band of rows, the blocks of a column are the bits of a word, so a block's rank is
// the number of bits below its own; no rank depends on which thread came first. README.md explains
// the steps.
namespace tessera::cuda {
namespace {

using planning::BsrRow;
using planning::BsrView;
using planning::GpuLists;
using planning::ListCut;

constexpr int kThreads = 512;      // one warp per row of a band
constexpr int kLineThreads = 128;  // per CTA, where each thread has a line
constexpr int kColumns = 4096;     // lines per tile, in shared memory
static_assert(kThreads / kLanes == ListCut::kBand);

struct Transposition {
  BsrView stored;
  GpuLists out;
  ListCut cut;
  std::int64_t batches = 0;

  __host__ __device__ std::int64_t tiles() const { return (out.lines + kColumns - 1) / kColumns; }
  /// CTA index: chunk 0 of all tiles, then chunk 1.
  __device__ std::int64_t chunk(std::int64_t block) const { return block / tiles(); }
  __device__ std::int64_t first_line(std::int64_t block) const {
    return block % tiles() * kColumns;
  }
  __device__ std::uint32_t* counts(std::int64_t batch, std::int64_t chunk) const {
    return out.counts + (batch * cut.chunks + chunk) * out.lines;
  }
  __device__ int tile_size(std::int64_t first) const {
    const std::int64_t left = out.lines - first;
    return static_cast<int>(left < kColumns ? left : kColumns);
  }
};

/// Calls `use(entry, line in the tile)` for the entries of this warp's row that lie in the tile.
template <class Use>
__device__ void for_each_entry(const BsrRow& row, std::int64_t first, int size, const Use& use) {
  constexpr int kAhead = 4;  // loads in flight
  const std::int64_t lane = threadIdx.x % kLanes;
  for (std::int64_t e = row.begin + lane; e < row.end; e += kAhead * kLanes) {
    std::int64_t line[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t entry = e + i * kLanes;
      line[i] = entry < row.end ? row.column(entry) - first : -1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (line[i] >= 0 && line[i] < size) use(e + i * kLanes, static_cast<int>(line[i]));
  }
}

/// Sets bit w of a line's word if row w of the band has a block in that line.
__device__ void mark_band(const BsrRow& row, std::int64_t first, int size, std::uint32_t* words) {
  const unsigned bit = threadIdx.x / kLanes;
  for (int j = threadIdx.x; j < size; j += kThreads) words[j] = 0;
  __syncthreads();
  for_each_entry(row, first, size, [&](std::int64_t, int j) { atomicOr(&words[j], 1u << bit); });
  __syncthreads();
}

__device__ std::int64_t row_of_warp(const ListCut& cut, std::int64_t chunk, std::int64_t band) {
  return (chunk * cut.bands + band) * ListCut::kBand + threadIdx.x / kLanes;
}

/// Counts the blocks of each line in each chunk of rows.
__global__ void __launch_bounds__(kThreads) count_kernel(Transposition t) {
  __shared__ std::uint32_t words[kColumns], sums[kColumns];
  const std::int64_t chunk = t.chunk(blockIdx.x), first = t.first_line(blockIdx.x);
  const int size = t.tile_size(first);
  for (std::int64_t batch = blockIdx.y; batch < t.batches; batch += gridDim.y) {
    for (int j = threadIdx.x; j < size; j += kThreads) sums[j] = 0;
    for (std::int64_t band = 0; band < t.cut.bands; ++band) {
      const BsrRow row = t.stored.row(batch, row_of_warp(t.cut, chunk, band));
      mark_band(row, first, size, words);
      for (int j = threadIdx.x; j < size; j += kThreads) sums[j] += __popc(words[j]);
    }
    std::uint32_t* counts = t.counts(batch, chunk) + first;
    for (int j = threadIdx.x; j < size; j += kThreads) counts[j] = sums[j];
  }
}

/// Turns each line's counts per chunk into the sum over the chunks before it, and writes the line's
/// length where its end offset will be.
__global__ void __launch_bounds__(kLineThreads) chunks_kernel(Transposition t) {
  constexpr int kAhead = 16;  // loads in flight
  const std::int64_t line = std::int64_t{blockIdx.x} * kLineThreads + threadIdx.x;
  if (line >= t.out.lines) return;
  for (std::int64_t batch = blockIdx.y; batch < t.batches; batch += gridDim.y) {
    std::uint32_t* counts = t.counts(batch, 0) + line;
    std::uint32_t sum = 0;
    for (std::int64_t chunk = 0; chunk < t.cut.chunks; chunk += kAhead) {
      std::uint32_t ahead[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        ahead[i] = chunk + i < t.cut.chunks ? counts[(chunk + i) * t.out.lines] : 0;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (chunk + i < t.cut.chunks) counts[(chunk + i) * t.out.lines] = sum;
        sum += ahead[i];
      }
    }
    t.out.offsets.set(batch * (t.out.lines + 1) + line + 1, sum);
  }
}

/// Turns lengths into offsets: one CTA per batch, each thread takes a range of lines.
__global__ void __launch_bounds__(kThreads) offsets_kernel(Transposition t) {
  const planning::Indices lengths = t.out.offsets;
  const std::int64_t lines = t.out.lines, each = (lines + kThreads - 1) / kThreads;
  const std::int64_t begin = planning::clamp_to(threadIdx.x * each, 0, lines);
  const std::int64_t end = planning::clamp_to(begin + each, 0, lines);
  for (std::int64_t batch = blockIdx.x; batch < t.batches; batch += gridDim.x) {
    const std::int64_t base = batch * (lines + 1) + 1;
    std::int64_t sum = 0;
    for (std::int64_t j = begin; j < end; ++j) sum += lengths[base + j];
    std::int64_t at = exclusive_sum<kThreads>(sum).before;
    for (std::int64_t j = begin; j < end; ++j) {
      at += lengths[base + j];
      // Overlapping rows could list more blocks than are stored.
      t.out.offsets.set(base + j, at < t.out.stored ? at : t.out.stored);
    }
    if (threadIdx.x == 0) t.out.offsets.set(base - 1, 0);
  }
}

/// Writes each block to its place: its line's offset, plus the blocks of earlier chunks, of earlier
/// bands in the chunk, and of earlier rows in the band.
__device__ void place(const Transposition& t, std::int64_t block) {
  __shared__ std::uint32_t words[kColumns], before[kColumns];
  const planning::Indices offsets = t.out.offsets;
  const std::int64_t chunk = t.chunk(block), first = t.first_line(block);
  const int size = t.tile_size(first);
  const std::uint32_t above = (1u << (threadIdx.x / kLanes)) - 1;
  for (std::int64_t batch = blockIdx.y; batch < t.batches; batch += gridDim.y) {
    const std::uint32_t* counts = t.counts(batch, chunk) + first;
    for (int j = threadIdx.x; j < size; j += kThreads) before[j] = counts[j];
    for (std::int64_t band = 0; band < t.cut.bands; ++band) {
      const std::int64_t row = row_of_warp(t.cut, chunk, band);
      const BsrRow list = t.stored.row(batch, row);
      mark_band(list, first, size, words);
      for_each_entry(list, first, size, [&](std::int64_t entry, int j) {
        const std::int64_t slot =
            offsets[batch * (t.out.lines + 1) + first + j] + before[j] + __popc(words[j] & above);
        if (slot >= t.out.stored) return;
        t.out.rows.set(batch * t.out.stored + slot, row);
        t.out.positions.set(batch * t.out.stored + slot, entry);
      });
      __syncthreads();
      for (int j = threadIdx.x; j < size; j += kThreads) before[j] += __popc(words[j]);
    }
    __syncthreads();
  }
}

/// Ranks 32 lines by length: a line's place is the number of lines that are longer, or as long and
/// before it. Each warp counts in a part of all lines.
__device__ void rank(const Transposition& t, std::int64_t block) {
  __shared__ int ahead[kLanes];
  constexpr int kWarps = kThreads / kLanes;
  const planning::Indices offsets = t.out.offsets;
  const std::int64_t lines = t.out.lines, lane = threadIdx.x % kLanes;
  const std::int64_t line = block * kLanes + lane, part = (lines + kWarps - 1) / kWarps;
  const std::int64_t begin = threadIdx.x / kLanes * part;
  const std::int64_t end = begin + part < lines ? begin + part : lines;
  for (std::int64_t batch = blockIdx.y; batch < t.batches; batch += gridDim.y) {
    const std::int64_t base = batch * (lines + 1);
    if (threadIdx.x < kLanes) ahead[lane] = 0;
    __syncthreads();
    const std::int64_t own = line < lines ? offsets[base + line + 1] - offsets[base + line] : 0;
    int count = 0;
    std::int64_t last = begin < end ? offsets[base + begin] : 0;
#pragma unroll 8
    for (std::int64_t j = begin; j < end; ++j) {
      const std::int64_t next = offsets[base + j + 1], other = next - last;
      count += other > own || (other == own && j < line);
      last = next;
    }
    atomicAdd(&ahead[lane], count);
    __syncthreads();
    if (threadIdx.x < kLanes && line < lines) t.out.order.set(batch * lines + ahead[lane], line);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) place_kernel(Transposition t, unsigned places) {
  if (blockIdx.x < places)
    place(t, blockIdx.x);
  else
    rank(t, blockIdx.x - places);
}

}  // namespace

void transpose_lists(const BsrView& stored, std::int64_t batches, const GpuLists& out,
                     const Place& place) {
  const DeviceGuard guard(place.device);
  const Transposition t{stored, out, ListCut::of(stored.block_rows), batches};
  const std::int64_t places = t.cut.chunks * t.tiles();
  const std::int64_t ranks = out.order ? (out.lines + kLanes - 1) / kLanes : 0;
  const std::int64_t lines = (out.lines + kLineThreads - 1) / kLineThreads;
  void* const stream = place.stream;
  Kernel<count_kernel>::launch({"count_kernel", grid_of(places, batches), kThreads, stream}, t);
  Kernel<chunks_kernel>::launch({"chunks_kernel", grid_of(lines, batches), kLineThreads, stream},
                                t);
  Kernel<offsets_kernel>::launch({"offsets_kernel", grid_of(batches), kThreads, stream}, t);
  Kernel<place_kernel>::launch({"place_kernel", grid_of(places + ranks, batches), kThreads, stream},
                               t, static_cast<unsigned>(places));
}

}  // namespace tessera::cuda
