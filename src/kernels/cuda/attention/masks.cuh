#pragma once

#include <cmath>
#include <cstdint>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/attention/descriptors.cuh"
#include "src/walk/tile_walk.hpp"

// Masks the scores of a step: by position (causal, window, lengths) and by the element masks of
// partial blocks.
namespace tessera::cuda::attention {

/// The element masks of partial blocks.
struct ElementMasks {
  const std::uint8_t* bits;
  bool aligned;  // one row's bits of 64 keys are eight aligned bytes
};

inline ElementMasks element_masks(const BlockMask& mask) {
  if (!mask.bit_tile) return {};
  const Tensor& bits = mask.bits;
  return {static_cast<const std::uint8_t*>(bits.data),
          bits.stride(2) == 1 && bits.stride(0) % 8 == 0 && bits.stride(1) % 8 == 0 &&
              reinterpret_cast<std::uintptr_t>(bits.data) % 8 == 0};
}

/// Reads one row's bits of 64 keys from an element mask, at offset `place`.
__device__ __forceinline__ std::uint64_t read_bits(const ElementMasks& masks, const Walk& walk,
                                                   std::int64_t place) {
  const std::uint8_t* from = masks.bits + place;
  if (masks.aligned) return __ldg(reinterpret_cast<const unsigned long long*>(from));
  std::uint64_t bits = 0;
#pragma unroll 1
  for (int j = 0; j < 8; ++j, from += walk.bits_byte)
    bits = bits >> 8 | static_cast<std::uint64_t>(__ldg(from)) << 56;
  return bits;
}

/// Columns of scores are keys in their order.
struct KeysInOrder {
  __device__ __forceinline__ std::uint64_t operator()(std::uint64_t bits) const { return bits; }
};

/// Sets the masked scores of a thread's two rows (`row`, `row` + 8) to -inf, or to `masked`. Of
/// each eight columns the thread holds two, from `first_column` on. `kListRows`: rows of the tile
/// that share a list; 0: all. `by_columns` moves the bits of keys, from `first_column` on, to where
/// the columns are. `kBothRows`: the bits of both rows are read before either is used, which takes
/// more registers.
template <int kListRows, bool kBothRows = true, int kPieces, class ByColumns = KeysInOrder>
__device__ __forceinline__ void mask_scores(float (&score)[kPieces * planning::kKeyPiece / 2],
                                            const StepDescriptor<kPieces>& step,
                                            const TileDescriptor& tile, const Walk& walk,
                                            const ElementMasks& masks, int row, int first_column,
                                            float masked = -INFINITY,
                                            const ByColumns& by_columns = {}) {
  const int row_of_list = kListRows > 0 ? row % kListRows : row;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    std::uint64_t bits[2] = {kAllKeys, kAllKeys};
    const auto read = [&](int half) {
      const int query = walk.pack.quotient(row_of_list + half * 8);
      const std::int64_t word_row = walk.word_queries.quotient(query);
      bits[half] = read_bits(masks, walk, step.bits[p] + word_row * walk.bits_row);
    };
    if (kBothRows && step.bits[p] != kNoBits) {
#pragma unroll
      for (int half = 0; half < 2; ++half) read(half);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!kBothRows && step.bits[p] != kNoBits) read(half);
      const int query = tile.first_query + walk.pack.quotient(row + half * 8);
      const std::uint64_t seen = by_columns(bits[half] >> first_column &
                                            tile.sight.bits_of(query, step.key[p] + first_column));
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if ((seen >> (j / 2 * 8 + j % 2) & 1) == 0)
          score[(p * 8 + j / 2) * 4 + half * 2 + j % 2] = masked;
    }
  }
}

}  // namespace tessera::cuda::attention
