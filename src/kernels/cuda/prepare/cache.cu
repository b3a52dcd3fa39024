#include "src/kernels/cuda/prepare/cache.hpp"

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"

// Conversions of rows of keys and values. Bound by memory: a warp converts a row, in words of four
// elements where strides allow.
namespace tessera::cuda {
namespace {

using planning::AppendRows;
using planning::AppendShape;
using planning::HeadRows;
using planning::QuantizeShape;

constexpr int kThreads = 256, kWarps = kThreads / kLanes;
constexpr int kWide = 4;  // elements of a word

/// An element of e4m3.
struct Narrow {
  std::uint8_t code;
};

template <class T>
__device__ T converted(float value, float scale) {
  if constexpr (sizeof(T) == 1)
    return {planning::e4m3_of(value, scale)};
  else
    return from_float<T>(value);
}

template <class T>
struct alignas(sizeof(T) * kWide) Word {
  T elements[kWide];
};

/// A warp copies a row of `dim` elements.
template <class In, class Out, bool kIsWide>
__device__ void convert_row(const HeadRows& from, std::int64_t from_at, const HeadRows& to,
                            std::int64_t to_at, std::int64_t dim, float scale) {
  const In* in = static_cast<const In*>(from.data) + from_at;
  Out* out = static_cast<Out*>(to.data) + to_at;
  const int lane = threadIdx.x % kLanes;
  if constexpr (kIsWide) {
    for (std::int64_t d = lane * kWide; d < dim; d += kLanes * kWide) {
      const auto word = *reinterpret_cast<const Word<In>*>(in + d);
      Word<Out> made;
#pragma unroll
      for (int i = 0; i < kWide; ++i)
        made.elements[i] = converted<Out>(to_float(word.elements[i]), scale);
      *reinterpret_cast<Word<Out>*>(out + d) = made;
    }
  } else {
#pragma unroll 1  // more copies of the loop spill
    for (std::int64_t d = lane; d < dim; d += kLanes)
      out[d * to.col] = converted<Out>(to_float(in[d * from.col]), scale);
  }
}

/// Whether words of four elements start and end with rows.
bool is_wide(const HeadRows& rows, std::int64_t dim) {
  const auto address = reinterpret_cast<std::uintptr_t>(rows.data);
  return dim % kWide == 0 && rows.col == 1 && rows.outer % kWide == 0 && rows.inner % kWide == 0 &&
         rows.head % kWide == 0 &&
         address % static_cast<unsigned>(kWide * size_of(rows.dtype)) == 0;
}

// ---- Factors
// -------------------------------------------------------------------------------------

/// Magnitudes are not negative, so their order is that of their bits.
__device__ std::uint32_t* bits_of(const QuantizeShape& s, std::int64_t factor) {
  return reinterpret_cast<std::uint32_t*>(
      s.scale.at(factor / s.scale_heads, factor % s.scale_heads));
}

__device__ std::int64_t first_item() { return std::int64_t{blockIdx.x} * kThreads + threadIdx.x; }
__device__ std::int64_t item_step() { return std::int64_t{gridDim.x} * kThreads; }

__global__ void __launch_bounds__(kThreads) clear_factors_kernel(QuantizeShape s) {
  for (std::int64_t i = first_item(); i < s.factors(); i += item_step()) *bits_of(s, i) = 0;
}

/// The largest magnitude of each factor's rows. A warp has adjacent rows in the order of factors,
/// and adds to memory once for each factor that it meets. A maximum does not depend on the order.
template <class In>
__global__ void __launch_bounds__(kThreads) largest_kernel(QuantizeShape s) {
  const std::int64_t rows = s.rows(), each = s.rows_per_factor();
  const std::int64_t warps = std::int64_t{gridDim.x} * kWarps;
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  const std::int64_t share = (rows + warps - 1) / warps;
  const std::int64_t begin = warp * share, end = planning::clamp_to(begin + share, 0, rows);
  const int lane = threadIdx.x % kLanes;
  float largest = 0;
  for (std::int64_t r = begin; r < end; ++r) {
    const QuantizeShape::Row row = s.row(r);
    const In* in = static_cast<const In*>(s.x.data) + s.x.at(row.outer, row.inner, row.head);
    for (std::int64_t d = lane; d < s.dim; d += kLanes) {
      const float x = planning::finite_magnitude(to_float(in[d * s.x.col]));
      largest = x > largest ? x : largest;
    }
    if (r + 1 < end && (r + 1) % each != 0) continue;
    const std::uint32_t bits = __reduce_max_sync(kAllLanes, __float_as_uint(largest));
    if (lane == 0) atomicMax(bits_of(s, r / each), bits);
    largest = 0;
  }
}

__global__ void __launch_bounds__(kThreads) finish_factors_kernel(QuantizeShape s) {
  for (std::int64_t i = first_item(); i < s.factors(); i += item_step()) {
    std::uint32_t* const bits = bits_of(s, i);
    *bits = __float_as_uint(planning::scale_for(__uint_as_float(*bits)));
  }
}

// ---- Rows
// ----------------------------------------------------------------------------------------

/// A warp per row, in the order of memory.
template <class In, bool kIsWide>
__global__ void __launch_bounds__(kThreads) quantize_kernel(QuantizeShape s) {
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t r = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes; r < s.rows();
       r += step) {
    const std::int64_t h = r % s.heads, i = r / s.heads % s.inner, o = r / s.heads / s.inner;
    convert_row<In, Narrow, kIsWide>(s.x, s.x.at(o, i, h), s.out, s.out.at(o, i, h), s.dim,
                                     s.scale.of(o, h));
  }
}

/// A warp per token and head: its key and its value.
template <class In, class Out, bool kIsWide>
__global__ void __launch_bounds__(kThreads) append_kernel(AppendShape s) {
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t item = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
       item < s.tokens * s.heads; item += step) {
    const std::int64_t h = item % s.heads;
    const AppendShape::Place place = s.place(item / s.heads);
    if (place.page < 0) continue;
    const std::int64_t outer = s.offsets ? 0 : place.batch;
    const auto copy = [&](const AppendRows& part) {
      convert_row<In, Out, kIsWide>(part.from, part.from.at(outer, place.token, h), part.to,
                                    part.to.at(place.page, place.slot, h), part.dim,
                                    part.scale.of(place.page, h));
    };
    copy(s.k);
    copy(s.v);
  }
}

/// Calls use(a value of the element type) also for e4m3.
template <class Use>
void with_stored(DType dtype, const Use& use) {
  if (dtype == DType::e4m3) return use(Narrow{});
  with_element(dtype, use);
}

constexpr std::int64_t kMaxBlocks = 132 * 32;  // rows beyond are reached by a loop

dim3 grid_for(std::int64_t items, int per_block) {
  const std::int64_t blocks = (items + per_block - 1) / per_block;
  return grid_of(blocks < kMaxBlocks ? blocks : kMaxBlocks);
}

}  // namespace

void quantize(const QuantizeShape& s, bool compute_scales, const Place& place) {
  const DeviceGuard guard(place.device);
  const Launch over_factors{"factors_kernel", grid_for(s.factors(), kThreads), kThreads,
                            place.stream};
  const Launch over_rows{"quantize_kernel", grid_for(s.rows(), kWarps), kThreads, place.stream};
  const bool wide = is_wide(s.x, s.dim) && is_wide(s.out, s.dim);
  with_element(s.x.dtype, [&](auto in) {
    using In = decltype(in);
    if (compute_scales) {
      Kernel<clear_factors_kernel>::launch(over_factors, s);
      Kernel<largest_kernel<In>>::launch(over_rows, s);
      Kernel<finish_factors_kernel>::launch(over_factors, s);
    }
    wide ? Kernel<quantize_kernel<In, true>>::launch(over_rows, s)
         : Kernel<quantize_kernel<In, false>>::launch(over_rows, s);
  });
}

void append(const AppendShape& s, const Place& place) {
  const DeviceGuard guard(place.device);
  const Launch how{"append_kernel", grid_for(s.tokens * s.heads, kWarps), kThreads, place.stream};
  bool wide = true;
  for (const AppendRows* part : {&s.k, &s.v})
    wide = wide && is_wide(part->from, part->dim) && is_wide(part->to, part->dim);
  with_element(s.k.from.dtype, [&](auto in) {
    with_stored(s.k.to.dtype, [&](auto out) {
      using In = decltype(in);
      using Out = decltype(out);
      wide ? Kernel<append_kernel<In, Out, true>>::launch(how, s)
           : Kernel<append_kernel<In, Out, false>>::launch(how, s);
    });
  });
}

}  // namespace tessera::cuda
