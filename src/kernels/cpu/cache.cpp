#include "src/kernels/cpu/cache.hpp"

#include <algorithm>
#include <vector>

#include "src/kernels/cpu/parallel.hpp"
#include "src/kernels/cpu/simd.hpp"

namespace tessera::cpu {
namespace {

using planning::AppendRows;
using planning::AppendShape;
using planning::HeadRows;
using planning::QuantizeShape;

void load_row(const HeadRows& rows, std::int64_t at, std::int64_t dim, float* row) {
  simd().load(static_cast<const char*>(rows.data) + at * size_of(rows.dtype), rows.dtype, rows.col,
              dim, row);
}

void store_narrow(const float* row, std::int64_t dim, float scale, const HeadRows& rows,
                  std::int64_t at) {
  auto* out = static_cast<std::uint8_t*>(rows.data) + at;
  for (std::int64_t d = 0; d < dim; ++d) out[d * rows.col] = planning::e4m3_of(row[d], scale);
}

/// Rows of scratch for the threads of a loop.
class Rows {
 public:
  Rows(int threads, std::int64_t dim)
      : dim_(static_cast<std::size_t>(dim)),
        floats_(static_cast<std::size_t>(std::max(threads, 1)) * dim_) {}
  float* of(int thread) { return floats_.data() + static_cast<std::size_t>(thread) * dim_; }

 private:
  std::size_t dim_;
  std::vector<float> floats_;
};

}  // namespace

void quantize(const QuantizeShape& s, bool compute_scales, int threads) {
  Rows rows(threads, s.dim);
  const std::int64_t each = s.rows_per_factor();
  if (compute_scales) {
    parallel_for(threads, s.factors(), [&](int thread, std::int64_t factor) {
      float* const row = rows.of(thread);
      float largest = 0;
      for (std::int64_t i = 0; i < each; ++i) {
        const auto [o, inner, h] = s.row(factor * each + i);
        load_row(s.x, s.x.at(o, inner, h), s.dim, row);
        for (std::int64_t d = 0; d < s.dim; ++d)
          largest = std::max(largest, planning::finite_magnitude(row[d]));
      }
      *s.scale.at(factor / s.scale_heads, factor % s.scale_heads) = planning::scale_for(largest);
    });
  }
  parallel_for(threads, s.outer * s.inner, [&](int thread, std::int64_t index) {
    float* const row = rows.of(thread);
    const std::int64_t o = index / s.inner, i = index % s.inner;
    for (std::int64_t h = 0; h < s.heads; ++h) {
      load_row(s.x, s.x.at(o, i, h), s.dim, row);
      store_narrow(row, s.dim, s.scale.of(o, h), s.out, s.out.at(o, i, h));
    }
  });
}

void append(const AppendShape& s, int threads) {
  Rows rows(threads, std::max(s.k.dim, s.v.dim));
  parallel_for(threads, s.tokens, [&](int thread, std::int64_t token) {
    float* const row = rows.of(thread);
    const AppendShape::Place place = s.place(token);
    if (place.page < 0) return;
    const std::int64_t outer = s.offsets ? 0 : place.batch;
    for (const AppendRows* part : {&s.k, &s.v}) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        load_row(part->from, part->from.at(outer, place.token, h), part->dim, row);
        const HeadRows& to = part->to;
        const std::int64_t at = to.at(place.page, place.slot, h);
        if (to.dtype == DType::e4m3) {
          store_narrow(row, part->dim, part->scale.of(place.page, h), to, at);
        } else {
          simd().store(row, part->dim, static_cast<char*>(to.data) + at * size_of(to.dtype),
                       to.dtype, to.col);
        }
      }
    }
  });
}

}  // namespace tessera::cpu
