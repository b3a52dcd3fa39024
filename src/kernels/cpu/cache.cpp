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

void load_row(const HeadRows& rows, std::int64_t at, std::int64_t dim, float* row) {
  simd().load(static_cast<const char*>(rows.data) + at * size_of(rows.dtype), rows.dtype, rows.col,
              dim, row);
}

void store_narrow(const float* row, std::int64_t dim, float scale, const HeadRows& rows,
                  std::int64_t at) {
  auto* out = static_cast<std::uint8_t*>(rows.data) + at;
  for (std::int64_t d = 0; d < dim; ++d)
    out[d * rows.col] = planning::fp8_of(rows.dtype, row[d], scale);
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
