#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"
#include "src/problem/shape.hpp"

// V in FP8, transposed: [sequence, KV head, column, key], in scratch memory, with the keys of each
// piece in the order of turned_key. Packed sequences follow each other along the keys
// (first_turned); pages are gathered.
namespace tessera::cuda::sm90::attention {

struct TurnedValues {
  std::uint8_t* data;
  std::int64_t keys, columns, heads, sequences;

  TurnedValues(std::uint8_t* data, const planning::AttentionShape& shape);
  tile::HeadsMap map() const;
};

/// Transposes V, of any strides. Keys that do not exist become zeros.
void turn_values(const AttentionProblem& problem, const TurnedValues& to, cudaStream_t stream);

}  // namespace tessera::cuda::sm90::attention
