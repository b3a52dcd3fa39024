#include "apps/tessera/fill.hpp"

#include <random>

namespace tessera::tool {

void fill_normal(const Tensor& contiguous, std::uint64_t seed, float scale) {
  std::mt19937_64 bits(seed);
  const std::int64_t count = contiguous.numel();
  for (std::int64_t i = 0; i < count; ++i) {
    // The sum of four uniform numbers, scaled to variance 1, is close to normal and fast enough for
    // millions of elements.
    const std::uint64_t word = bits();
    float sum = -2.0f;
    for (int part = 0; part < 4; ++part)
      sum += static_cast<float>((word >> (16 * part)) & 0xFFFF) * (1.0f / 65536.0f);
    store_from_float(contiguous.data, contiguous.dtype, i, sum * 1.7320508f * scale);
  }
}

HostTensor normal_tensor(DType dtype, const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  HostTensor tensor(dtype, shape);
  fill_normal(tensor, seed);
  return tensor;
}

}  // namespace tessera::tool
