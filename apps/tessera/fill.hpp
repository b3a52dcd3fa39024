#pragma once

#include <cstdint>
#include <tessera/host_tensor.hpp>
#include <vector>

namespace tessera::tool {

/// A tensor of normally distributed numbers, the same for the same seed.
HostTensor normal_tensor(DType dtype, const std::vector<std::int64_t>& shape, std::uint64_t seed);
/// The same, times `scale`, into memory that is there already.
void fill_normal(const Tensor& contiguous, std::uint64_t seed, float scale = 1);

}  // namespace tessera::tool
