#include "src/kernels/cpu/quantize.hpp"

#include <algorithm>
#include <vector>

#include "src/kernels/cpu/parallel.hpp"
#include "src/kernels/cpu/simd.hpp"

namespace tessera::cpu {
namespace {

using planning::Four;
using planning::QuantizeShape;

void load(const QuantizeShape& s, const Four& at, std::int64_t length, float* row) {
  const std::int64_t element = at.times(s.x_stride);
  simd().load(static_cast<const char*>(s.x) + element * size_of(s.x_dtype), s.x_dtype, s.x_stride.d,
              length, row);
}

void compute_factor(const QuantizeShape& s, std::int64_t index, float* row) {
  const std::int64_t each = s.runs_per_box();
  float largest = 0;
  for (std::int64_t i = 0; i < (s.runs() == 0 ? 0 : each); ++i) {
    const QuantizeShape::Run run = s.run(index * each + i);
    if (run.length == 0) continue;
    load(s, run.at, run.length, row);
    for (std::int64_t d = 0; d < run.length; ++d)
      largest = std::max(largest, planning::finite_magnitude(row[d]));
  }
  *s.factor(index) = planning::scale_for(largest, s.out_dtype);
}

void narrow_row(const QuantizeShape& s, const Four& at, float* row) {
  load(s, at, s.size.d, row);
  const float* scale = s.factors_of(at);
  auto* out = static_cast<std::uint8_t*>(s.out) + at.times(s.out_stride);
  for (std::int64_t begin = 0; begin < s.size.d; begin += s.box.d, scale += s.scale_stride.d) {
    const std::int64_t end = std::min(begin + s.box.d, s.size.d);
    for (std::int64_t d = begin; d < end; ++d)
      out[d * s.out_stride.d] = planning::fp8_of(s.out_dtype, row[d], *scale);
  }
}

}  // namespace

void quantize(const QuantizeShape& s, bool compute_scales, int threads) {
  const auto width = static_cast<std::size_t>(s.size.d);
  std::vector<float> rows(static_cast<std::size_t>(std::max(threads, 1)) * width);
  const auto row_of = [&](int thread) {
    return rows.data() + static_cast<std::size_t>(thread) * width;
  };
  if (compute_scales)
    parallel_for(threads, s.factors(), [&](int thread, std::int64_t factor) {
      compute_factor(s, factor, row_of(thread));
    });
  parallel_for(threads, s.rows(), [&](int thread, std::int64_t index) {
    narrow_row(s, s.row(index), row_of(thread));
  });
}

}  // namespace tessera::cpu
