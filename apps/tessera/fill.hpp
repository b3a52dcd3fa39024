#pragma once

#include <cstdint>
#include <tessera/host_tensor.hpp>
#include <vector>

namespace tessera::tool {

/// A tensor of normally distributed numbers, determined by the seed.
HostTensor normal_tensor(DType dtype, const std::vector<std::int64_t>& shape, std::uint64_t seed);
/// Fills an existing tensor with such numbers times `scale`.
void fill_normal(const Tensor& contiguous, std::uint64_t seed, float scale = 1);

}  // namespace tessera::tool
