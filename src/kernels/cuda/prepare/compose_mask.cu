#include "src/kernels/cuda/prepare/compose_mask.hpp"

#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/common/scan.cuh"

// Composes lists of small blocks into lists of blocks that attention's tiles fit. A CTA composes
// one row of lists at a time: it ORs the bit masks of as many columns of blocks as shared memory
// holds (in any order of the given lists), then writes each column's block, in order.
namespace tessera::cuda {
namespace {

using planning::MaskComposer;

constexpr int kThreads = 256;
constexpr int kWords = 5120;

/// Number of columns whose words are merged together. Odd, so that neither the words of a column
/// nor neighbouring columns cause bank conflicts.
__device__ int columns_at_once(const MaskComposer& s) {
  return (kWords / static_cast<int>(s.to.words) - 1) | 1;
}

/// Merges the blocks that the given lists name in columns [first, first + width). The result does
/// not depend on the order of the threads.
__device__ void merge_columns(const MaskComposer& s, const MaskComposer::ComposedRow& row,
                              std::int64_t first, int width, int pitch, std::uint64_t* words) {
  for (std::int64_t number = 0; number < s.sources(row); ++number) {
    const MaskComposer::Source source = s.source(row, number);
    // Adjacent threads take the words of one entry, then those of the next.
    const int each = static_cast<int>(source.words), abreast = kThreads / each;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= abreast * each) continue;
    const std::int64_t word = source.first_word + thread % each;
    auto* halves = reinterpret_cast<unsigned*>(words + word * pitch);
    for (std::int64_t entry = thread / each; entry < source.blocks.size; entry += abreast)
      s.add(row, source, entry, word, first, first + width,
            [&](std::int64_t column, std::uint64_t bits) {
              unsigned* at = halves + 2 * (column - first);
              const auto low = static_cast<unsigned>(bits),
                         high = static_cast<unsigned>(bits >> 32);
              if (low != 0) atomicOr(at, low);
              if (high != 0) atomicOr(at + 1, high);
            });
  }
}

__global__ void __launch_bounds__(kThreads) compose_kernel(MaskComposer s) {
  __shared__ std::uint64_t words[kWords];
  __shared__ std::uint64_t unions[kThreads];
  __shared__ std::int64_t blocks[kThreads];  // where a column's element mask goes; -1: none
  const int thread = static_cast<int>(threadIdx.x), count = static_cast<int>(s.to.words);
  const int pitch = columns_at_once(s);
  for (std::int64_t index = blockIdx.x; index < s.to.list_rows(); index += gridDim.x) {
    const MaskComposer::ComposedRow row = s.composed_row(index);
    const std::int64_t begin = index * s.to.capacity;
    std::int64_t full = 0, partial = 0;
    for (std::int64_t first = 0; first < s.to.columns; first += pitch) {
      const std::int64_t left = s.to.columns - first;
      const int width = left < pitch ? static_cast<int>(left) : pitch;
      for (int i = thread; i < count * pitch; i += kThreads) words[i] = 0;
      __syncthreads();
      merge_columns(s, row, first, width, pitch, words);
      __syncthreads();
      for (int from = 0; from < width; from += kThreads) {
        const int column = from + thread;
        MaskComposer::Classified classified;
        if (column < width)
          classified = s.classify(row, first + column,
                                  [&](std::int64_t word) { return words[word * pitch + column]; });
        const bool is_full = classified.kind == MaskComposer::Kind::full;
        const bool is_partial = classified.kind == MaskComposer::Kind::partial;
        // One prefix sum for both counts.
        const ExclusiveSum sum =
            exclusive_sum<kThreads>((std::int64_t{is_partial} << 32) + is_full);
        constexpr std::int64_t kLow = 0xffffffff;
        const std::int64_t full_slot = full + (sum.before & kLow);
        const std::int64_t partial_slot = partial + (sum.before >> 32);
        unions[thread] = classified.any;
        blocks[thread] = -1;
        if (is_full && full_slot < s.to.capacity)
          s.lists.full[begin + full_slot] = static_cast<std::int32_t>(first + column);
        if (is_partial && partial_slot < s.to.capacity) {
          const std::int64_t block = begin + partial_slot;
          blocks[thread] = block;
          s.lists.partial[block] = static_cast<std::int32_t>(first + column);
          s.lists.bit_tile[block] = static_cast<std::int32_t>(block);
        }
        full += sum.total & kLow;
        partial += sum.total >> 32;
        __syncthreads();
        // Writes the element masks; those of adjacent columns are adjacent in memory.
        const int wide = width - from < kThreads ? width - from : kThreads;
        for (int i = thread; i < wide * (count + 1); i += kThreads) {
          const int at = i / (count + 1), word = i % (count + 1);
          if (blocks[at] >= 0)
            s.lists.bits[blocks[at] * (count + 1) + word] =
                word < count ? words[word * pitch + from + at] : unions[at];
        }
        __syncthreads();
      }
    }
    if (thread == 0) {
      const auto stored = [&](std::int64_t named) {
        return static_cast<std::int32_t>(named < s.to.capacity ? named : s.to.capacity);
      };
      s.lists.full_counts[index] = stored(full);
      s.lists.partial_counts[index] = stored(partial);
    }
  }
}

}  // namespace

void compose_mask(const MaskComposer& s, void* stream) {
  Kernel<compose_kernel>::launch({"compose_kernel", grid_of(s.to.list_rows()), kThreads, stream},
                                 s);
}

}  // namespace tessera::cuda
