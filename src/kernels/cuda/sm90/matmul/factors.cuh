#pragma once

#include <cstdint>

#include <tessera/matmul.hpp>

#include "src/problem/shape.hpp"

// The factors of FP8 operands.
namespace tessera::cuda::sm90::matmul {

/// A line is a row of A or a column of B, as the kernel multiplies them. Strides in elements, in
/// 32 bits as registers are few (OperandShape::scale_fits).
struct Factors {
  const float* data = nullptr;  // null: 1
  std::uint32_t batch = 0, line = 0, depth = 0, stored = 0;
  int line_shift = 0;  // log2 of the lines that share a factor
  int last = 0;        // line of the operand
  // The same along the depth: the sums are multiplied by it when all is added up.
  bool at_end = false;

  static constexpr int kDepthShift = 7;

  /// Whether each step has factors of its own.
  __device__ __forceinline__ bool by_step() const { return data && !at_end; }

  __device__ __forceinline__ float of(int at_batch, int at_line, int at_depth, int block) const {
    if (!data) return 1.0f;
    const int in = at_line < last ? at_line : last;  // what lies behind is not stored
    const std::uint32_t at = static_cast<std::uint32_t>(at_batch) * batch +
                             static_cast<std::uint32_t>(in >> line_shift) * line +
                             static_cast<std::uint32_t>(at_depth >> kDepthShift) * depth +
                             static_cast<std::uint32_t>(block) * stored;
    return __ldg(data + at);
  }
};

/// The factors of an operand; `is_left`: its rows are lines. `pool_step`: see Walk.
inline Factors factors_of(const Operand& operand, planning::ScaleForm form, bool is_left,
                          std::int64_t lines, std::int64_t pool_step) {
  using planning::ScaleForm;
  Factors factors;
  const Tensor& scale = operand.scale;
  if (form == ScaleForm::none || !scale) return factors;
  factors.data = static_cast<const float*>(scale.data);
  factors.last = static_cast<int>(lines) - 1;
  // Modulo 2^32, as the sum of all offsets is within it.
  const auto bits = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  const auto stride = [&](int dim) { return bits(scale.size(dim) > 1 ? scale.stride(dim) : 0); };
  factors.at_end = form == ScaleForm::tensor;
  if (factors.at_end) return factors;
  if (form == ScaleForm::stored_block) {
    factors.stored = bits(scale.stride(scale.rank - 1));
    // Blocks are counted over all matrices of a pool.
    if (scale.rank == 2) factors.batch = stride(0) - bits(pool_step) * factors.stored;
    return factors;
  }
  if (scale.rank == 3) factors.batch = stride(0);
  const bool in_rows = is_left != operand.transposed;
  factors.line = stride(scale.rank - (in_rows ? 2 : 1));
  factors.depth = stride(scale.rank - (in_rows ? 1 : 2));
  if (form == ScaleForm::block_128) factors.line_shift = Factors::kDepthShift;
  factors.at_end = form == ScaleForm::line || form == ScaleForm::matrix;
  return factors;
}

}  // namespace tessera::cuda::sm90::matmul
