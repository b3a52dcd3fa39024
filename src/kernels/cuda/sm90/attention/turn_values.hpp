#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <tessera/tensor.hpp>

#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"
#include "src/problem/shape.hpp"

// V in FP8, transposed: [batch, KV head, column, key], in scratch memory, with the keys of each
// group in the order of turned_key.
namespace tessera::cuda::sm90::attention {

struct TurnedValues {
  std::uint8_t* data;
  std::int64_t keys, columns, heads, batches;

  TurnedValues(std::uint8_t* data, const planning::AttentionShape& shape);
  tile::HeadsMap map() const;
};

/// Transposes `values` [batch, length, heads, columns] of any strides. Keys beyond the length
/// become zeros.
void turn_values(const Tensor& values, const TurnedValues& to, cudaStream_t stream);

}  // namespace tessera::cuda::sm90::attention
