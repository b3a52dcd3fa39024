#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"

// Hidden pairs, and rows in shared memory that nothing may read.
namespace tessera::cuda::sm90::attention_backward {

/// Sets P of hidden pairs of a block of queries to zero: by position, by the list and by the
/// element mask of a block. A thread has two keys (`half`) and, of each eight queries, two; from
/// `kFirst` on.
template <int kFirst, int kAll>
__device__ __forceinline__ void hide(float (&p)[kAll], const planning::BackwardWalk& walk,
                                     const KeyTileJob& job, const BackwardStep& step,
                                     std::uint64_t kept, int consumer, int thread) {
  constexpr int kCount = planning::kQueriesPerBlock / 2;
  const int key = thread / 32 * 16 + thread % 32 / 4, first_query = thread % 4 * 2;
  const std::int32_t bits = step.bits[consumer];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint64_t seen =
        planning::queries_of_key(job, step, kept, consumer, key + half * 8) >> first_query;
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i / 2 % 2 == half && (seen >> (i / 4 * 8 + i % 2) & 1) == 0) p[kFirst + i] = 0;
  }
  if (bits < 0) return;
  const std::uint64_t* const words = walk.edges.words(bits);
  const int shift = 31 - __clz(static_cast<int>(walk.edges.sizes.mask.word_queries()));
#pragma unroll
  for (int i = 0; i < kCount; i += 4)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint64_t word = __ldg(reinterpret_cast<const unsigned long long*>(words) +
                                       ((i * 2 + first_query + j) >> shift));
      if ((word >> key & 1) == 0) p[kFirst + i + j] = 0;
      if ((word >> (key + 8) & 1) == 0) p[kFirst + i + 2 + j] = 0;
    }
}

/// Writes zeros to those of 64 rows of a tile, from row `first` on, that are not in `kept`. The
/// threads of one warpgroup call.
template <class Rows>
__device__ __forceinline__ void clear_rows(Rows& rows, int first, std::uint64_t kept, int thread) {
  constexpr int kThreadsPerRow = 2, kWords = Rows::kLineBytes / 16 / kThreadsPerRow;
  const int row = thread / kThreadsPerRow;
  if ((kept >> row & 1) != 0) return;
#pragma unroll
  for (int p = 0; p < Rows::kPanels; ++p) {
    uint4* const line = reinterpret_cast<uint4*>(rows.panel(p, first + row));
#pragma unroll
    for (int i = 0; i < kWords; ++i) line[i * kThreadsPerRow + thread % kThreadsPerRow] = uint4{};
  }
}

}  // namespace tessera::cuda::sm90::attention_backward
