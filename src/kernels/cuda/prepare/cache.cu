#include "src/kernels/cuda/prepare/cache.hpp"

#include "src/kernels/cuda/prepare/narrow_row.cuh"

// New keys and values into pages. Bound by memory: a warp converts a row.
namespace tessera::cuda {
namespace {

using planning::AppendRows;
using planning::AppendShape;
using planning::HeadRows;

/// Whether words of four elements start and end with rows.
bool is_wide(const HeadRows& rows, std::int64_t dim) {
  return dim % kWide == 0 && rows.col == 1 && rows.outer % kWide == 0 && rows.inner % kWide == 0 &&
         rows.head % kWide == 0 && starts_word(rows.data, rows.dtype);
}

/// A warp per token and head: its key and its value.
template <class In, class Out, bool kIsWide>
__global__ void __launch_bounds__(kRowThreads) append_kernel(AppendShape s) {
  const std::int64_t step = std::int64_t{gridDim.x} * kRowWarps;
  for (std::int64_t item = std::int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kLanes;
       item < s.tokens * s.heads; item += step) {
    const std::int64_t h = item % s.heads;
    const AppendShape::Place place = s.place(item / s.heads);
    if (place.page < 0) continue;
    const std::int64_t outer = s.offsets ? 0 : place.batch;
    const auto copy = [&](const AppendRows& part) {
      const float scale = part.scale.of(place.page, h);
      const HeadRows &from = part.from, &to = part.to;
      convert_row<kIsWide>(static_cast<const In*>(from.data) + from.at(outer, place.token, h),
                           from.col, static_cast<Out*>(to.data) + to.at(place.page, place.slot, h),
                           to.col, part.dim, [scale](std::int64_t) { return scale; });
    };
    copy(s.k);
    copy(s.v);
  }
}

/// The dtypes of a cache: no more, as each compiles kernels of its own.
template <class Use>
void with_cached(DType dtype, const Use& use) {
  if (dtype == DType::e4m3) return use(Narrow<DType::e4m3>{});
  with_element(dtype, use);
}

}  // namespace

void append(const AppendShape& s, const Place& place) {
  const DeviceGuard guard(place.device);
  const Launch how{"append_kernel", grid_for_items(s.tokens * s.heads, kRowWarps), kRowThreads,
                   place.stream};
  bool wide = true;
  for (const AppendRows* part : {&s.k, &s.v})
    wide = wide && is_wide(part->from, part->dim) && is_wide(part->to, part->dim);
  with_element(s.k.from.dtype, [&](auto in) {
    with_cached(s.k.to.dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      wide ? Kernel<append_kernel<In, Out, true>>::launch(how, s)
           : Kernel<append_kernel<In, Out, false>>::launch(how, s);
    });
  });
}

}  // namespace tessera::cuda
