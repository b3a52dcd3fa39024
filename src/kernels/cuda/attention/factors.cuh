#pragma once

#include <bit>
#include <cstdint>

#include <tessera/tensor.hpp>

#include "src/problem/scale_rules.hpp"

// The factors of queries, keys and values in FP8.
namespace tessera::cuda::attention {

/// Strides in elements. `kShifts`: the number of rows that share a factor is given by its binary
/// logarithm, which saves a division of some 20 instructions. Decode has been measured with the
/// division only.
template <bool kShifts>
struct FactorsOf {
  const float* data = nullptr;  // null: 1
  std::int64_t outer = 0, head = 0, block = 0;
  int rows = kShifts ? 0 : 1;  // that share a factor

  /// `at`: the sequence, or the page; `row`: in it.
  __device__ float of(int at, int of_head, int row) const {
    return data ? __ldg(place(at, of_head, row)) : 1.0f;
  }
  /// The address of that factor. `data` must not be null.
  __device__ const float* place(int at, int of_head, int row) const {
    return data + at * outer + of_head * head + (kShifts ? row >> rows : row / rows) * block;
  }
  /// Whether rows of one head have several.
  bool by_rows() const { return block != 0; }
};

/// The factors `scale` of rows [.., length, heads, dim].
template <bool kShifts>
FactorsOf<kShifts> factors_of(const Tensor& scale, const Tensor& rows) {
  FactorsOf<kShifts> factors;
  if (!scale) return factors;
  factors.data = static_cast<const float*>(scale.data);
  const bool has_outer = rows.rank == 4, by_rows = scale.rank == (has_outer ? 3 : 2);
  const int head = has_outer && scale.rank >= 2 ? 1 : 0;
  const auto stride = [&](int dim) { return scale.size(dim) > 1 ? scale.stride(dim) : 0; };
  if (head > 0) factors.outer = stride(0);
  factors.head = stride(head);
  if (by_rows) {
    factors.block = stride(head + 1);
    const auto shared = static_cast<unsigned>(
        planning::rows_per_scale(rows.size(rows.rank - 3), scale.size(head + 1)));
    factors.rows = kShifts ? std::countr_zero(shared) : static_cast<int>(shared);
  }
  return factors;
}

}  // namespace tessera::cuda::attention
