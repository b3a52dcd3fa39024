#pragma once

#include <array>
#include <cstddef>
#include <vector>

// ldmatrix and mma.sync as PTX defines them, for small integers, so that all sums are exact.
namespace tessera::cuda::testing {

/// Shared memory whose 16-bit elements hold small integers.
using Memory = std::vector<int>;
/// Two elements per word, four words per lane.
using Words = std::array<std::array<std::array<int, 2>, 4>, 32>;

/// ldmatrix.x4: lane 8 i + r gives the address of row r of block i; lane l receives the elements 2
/// (l % 4) and 2 (l % 4) + 1 of row l / 4 of each block. Transposed: of each column.
inline Words ldmatrix(const Memory& memory, const std::array<unsigned, 32>& address,
                      bool transposed) {
  Words words;
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t block = 0; block < 4; ++block)
      for (std::size_t i = 0; i < 2; ++i) {
        const std::size_t outer = lane / 4, inner = lane % 4 * 2 + i;
        const std::size_t row = transposed ? inner : outer, column = transposed ? outer : inner;
        words[lane][block][i] = memory[address[block * 8 + row] / 2 + column];
      }
  return words;
}

/// mma.sync.m16n8k16, as PTX defines its fragments: sum += A B for a 16 x 8 tile.
inline void mma(std::array<std::array<int, 4>, 32>& sum, const Words& a, const Words& b,
                std::size_t b_word) {
  int left[16][16], right[16][8];
  for (std::size_t lane = 0; lane < 32; ++lane) {
    const std::size_t group = lane / 4, pair = lane % 4 * 2;
    for (std::size_t i = 0; i < 2; ++i) {
      left[group][pair + i] = a[lane][0][i];
      left[group + 8][pair + i] = a[lane][1][i];
      left[group][pair + 8 + i] = a[lane][2][i];
      left[group + 8][pair + 8 + i] = a[lane][3][i];
      right[pair + i][group] = b[lane][b_word][i];
      right[pair + 8 + i][group] = b[lane][b_word + 1][i];
    }
  }
  for (std::size_t lane = 0; lane < 32; ++lane)
    for (std::size_t i = 0; i < 4; ++i)
      for (std::size_t depth = 0; depth < 16; ++depth)
        sum[lane][i] += left[lane / 4 + i / 2 * 8][depth] * right[depth][lane % 4 * 2 + i % 2];
}

inline int value(int row, int column, int seed) {
  return (row * 7 + column * 3 + seed * 5) % 11 - 5;
}

}  // namespace tessera::cuda::testing
