#include "src/kernels/cuda/prepare/quantize.hpp"

#include "src/kernels/cuda/prepare/narrow_row.cuh"

// Factors from the largest magnitudes, and conversion by them. Bound by memory.
namespace tessera::cuda {
namespace {

using planning::Four;
using planning::QuantizeShape;

__device__ std::int64_t first_item() {
  return std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
}
__device__ std::int64_t item_step() { return std::int64_t{gridDim.x} * kRowThreads; }
__device__ std::int64_t first_row() {
  return std::int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kLanes;
}
__device__ std::int64_t row_step() { return std::int64_t{gridDim.x} * kRowWarps; }

/// Magnitudes are not negative, so their order is that of their bits.
__device__ std::uint32_t* bits_of(const QuantizeShape& s, std::int64_t factor) {
  return reinterpret_cast<std::uint32_t*>(s.factor(factor));
}

__global__ void __launch_bounds__(kRowThreads) clear_factors_kernel(QuantizeShape s) {
  for (std::int64_t i = first_item(); i < s.factors(); i += item_step()) *bits_of(s, i) = 0;
}

/// The largest magnitude of each factor's box. A warp has adjacent runs in the order of factors,
/// and adds to memory once for each factor that it meets. A maximum does not depend on the order.
template <class In>
__global__ void __launch_bounds__(kRowThreads) largest_kernel(QuantizeShape s) {
  const std::int64_t runs = s.runs(), each = s.runs_per_box();
  const std::int64_t share = (runs + row_step() - 1) / row_step();
  const std::int64_t begin = first_row() * share;
  const std::int64_t end = planning::clamp_to(begin + share, 0, runs);
  const int lane = threadIdx.x % kLanes;
  float largest = 0;
  for (std::int64_t r = begin; r < end; ++r) {
    const QuantizeShape::Run run = s.run(r);
    const In* in = static_cast<const In*>(s.x) + run.at.times(s.x_stride);
    for (std::int64_t d = lane; d < run.length; d += kLanes) {
      const float x = planning::finite_magnitude(to_float(in[d * s.x_stride.d]));
      largest = x > largest ? x : largest;
    }
    if (r + 1 < end && (r + 1) % each != 0) continue;
    const std::uint32_t bits = __reduce_max_sync(kAllLanes, __float_as_uint(largest));
    if (lane == 0) atomicMax(bits_of(s, r / each), bits);
    largest = 0;
  }
}

__global__ void __launch_bounds__(kRowThreads) finish_factors_kernel(QuantizeShape s) {
  for (std::int64_t i = first_item(); i < s.factors(); i += item_step()) {
    std::uint32_t* const bits = bits_of(s, i);
    *bits = __float_as_uint(planning::scale_for(__uint_as_float(*bits), s.out_dtype));
  }
}

/// A warp per row, in the order of memory.
template <class In, class Out, bool kIsWide>
__global__ void __launch_bounds__(kRowThreads) quantize_kernel(QuantizeShape s) {
  for (std::int64_t r = first_row(); r < s.rows(); r += row_step()) {
    const Four at = s.row(r);
    const float* factors = s.factors_of(at);
    convert_row<kIsWide>(static_cast<const In*>(s.x) + at.times(s.x_stride), s.x_stride.d,
                         static_cast<Out*>(s.out) + at.times(s.out_stride), s.out_stride.d,
                         s.size.d, [&](std::int64_t d) {
                           return factors[s.count.d == 1 ? 0 : d / s.box.d * s.scale_stride.d];
                         });
  }
}

/// Whether words of four elements start and end with rows, and have one factor.
bool is_wide(const QuantizeShape& s) {
  const auto whole = [](const Four& stride) {
    return stride.d == 1 && stride.a % kWide == 0 && stride.b % kWide == 0 && stride.c % kWide == 0;
  };
  return s.size.d % kWide == 0 && (s.count.d == 1 || s.box.d % kWide == 0) && whole(s.x_stride) &&
         whole(s.out_stride) && starts_word(s.x, s.x_dtype) && starts_word(s.out, s.out_dtype);
}

template <class In, class Out>
void narrow(const QuantizeShape& s, const Launch& how) {
  is_wide(s) ? Kernel<quantize_kernel<In, Out, true>>::launch(how, s)
             : Kernel<quantize_kernel<In, Out, false>>::launch(how, s);
}

}  // namespace

void quantize(const QuantizeShape& s, bool compute_scales, const Place& place) {
  const DeviceGuard guard(place.device);
  const auto over = [&](const char* name, std::int64_t items, int per_block) {
    return Launch{name, grid_for_items(items, per_block), kRowThreads, place.stream};
  };
  with_element(s.x_dtype, [&](auto in) {
    using In = decltype(in);
    if (compute_scales) {
      const Launch factors = over("factors_kernel", s.factors(), kRowThreads);
      Kernel<clear_factors_kernel>::launch(factors, s);
      Kernel<largest_kernel<In>>::launch(over("largest_kernel", s.runs(), kRowWarps), s);
      Kernel<finish_factors_kernel>::launch(factors, s);
    }
    const Launch rows = over("quantize_kernel", s.rows(), kRowWarps);
    s.out_dtype == DType::e4m3 ? narrow<In, Narrow<DType::e4m3>>(s, rows)
                               : narrow<In, Narrow<DType::e5m2>>(s, rows);
  });
}

}  // namespace tessera::cuda
