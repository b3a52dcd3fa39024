#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/mma.cuh"
#include "src/kernels/cuda/sm80/attention_backward/operands.hpp"

// Products of matrices in shared memory: a warp has blocks of 16 rows of the left one, and pairs of
// eight columns of the right one.
namespace tessera::cuda::sm80::attention_backward {

template <class Operand>
__device__ __forceinline__ void load(const Operand& operand, int block, int i,
                                     std::uint32_t (&words)[4]) {
  if constexpr (Operand::kTransposed)
    load_transposed(operand.at(block, i), words);
  else
    load_left_operand(operand.at(block, i), words);
}

/// Right operands of 16 columns that stay in registers.
template <int kDepth>
struct HeldOperand {
  std::uint32_t words[kDepth][4];
};
template <int kDepth>
__device__ __forceinline__ void load(const HeldOperand<kDepth>& operand, int, int i,
                                     std::uint32_t (&words)[4]) {
#pragma unroll
  for (int word = 0; word < 4; ++word) words[word] = operand.words[i][word];
}

/// sum += left * right, over a depth of 16 * kDepth. `sum` may have room for more than the kPairs
/// pairs of eight columns.
template <class Element, int kDepth, int kPairs, class Left, class Right, int kBlocks, int kCount>
__device__ __forceinline__ void multiply(float (&sum)[kBlocks][kCount], const Left& left,
                                         const Right& right) {
  static_assert(kPairs * 8 <= kCount);
#pragma unroll
  for (int i = 0; i < kDepth; ++i) {
    std::uint32_t a[kBlocks][4];
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) load(left, block, i, a[block]);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      std::uint32_t b[4];
      load(right, pair, i, b);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        float(&low)[4] = reinterpret_cast<float(&)[4]>(sum[block][pair * 8]);
        float(&high)[4] = reinterpret_cast<float(&)[4]>(sum[block][pair * 8 + 4]);
        mma<Element>(low, a[block], b[0], b[1]);
        mma<Element>(high, a[block], b[2], b[3]);
      }
    }
  }
}

}  // namespace tessera::cuda::sm80::attention_backward
