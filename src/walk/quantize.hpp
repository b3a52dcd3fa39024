#pragma once

#include <cfloat>
#include <cstdint>

#include <tessera/tensor.hpp>

#include "src/core/half.hpp"
#include "src/walk/list_walk.hpp"

// Narrowing to FP8 by factors that boxes of a tensor share. The same arithmetic runs on the host
// and on the device.
namespace tessera::planning {

/// The largest finite value of an FP8 type.
TESSERA_HD constexpr float largest_fp8(DType dtype) {
  return dtype == DType::e4m3 ? 448.0f : 57344.0f;
}

/// value / scale in FP8, as `quantize` states.
TESSERA_HD constexpr std::uint8_t fp8_of(DType dtype, float value, float scale) {
  float quotient = scale != 0.0f ? value / scale : value * 0.0f;
  if (dtype == DType::e4m3) return core::e4m3_from_float(quotient);
  const float limit = largest_fp8(dtype);
  if (value >= -FLT_MAX && value <= FLT_MAX)
    quotient = quotient > limit ? limit : quotient < -limit ? -limit : quotient;
  return core::e5m2_from_float(quotient);
}

/// The magnitude that decides on a factor: 0 for NaN and infinities.
TESSERA_HD constexpr float finite_magnitude(float x) {
  const float magnitude = x < 0 ? -x : x;
  return magnitude <= FLT_MAX ? magnitude : 0.0f;
}
/// The factor for a largest magnitude. A division by it does not overflow.
TESSERA_HD constexpr float scale_for(float largest, DType dtype) {
  if (largest == 0.0f) return 1.0f;
  const float scale = largest / largest_fp8(dtype);
  return scale < FLT_MIN ? FLT_MIN : scale;
}

/// One number for each of the four dimensions of a tensor; missing ones come first.
struct Four {
  std::int64_t a = 0, b = 0, c = 0, d = 0;

  TESSERA_HD constexpr std::int64_t times(const Four& o) const {
    return a * o.a + b * o.b + c * o.c + d * o.d;
  }
  TESSERA_HD constexpr std::int64_t volume() const { return a * b * c * d; }
};

/// A problem of `quantize` after its tensors have been checked.
struct QuantizeShape {
  void* x = nullptr;
  void* out = nullptr;
  float* scale = nullptr;
  DType x_dtype = DType::none, out_dtype = DType::none;
  Four size;   // of the tensor
  Four box;    // elements that share a factor, at least 1
  Four count;  // of boxes
  Four x_stride, out_stride, scale_stride;

  TESSERA_HD constexpr std::int64_t rows() const { return size.a * size.b * size.c; }
  /// The indices of a row; d is 0.
  TESSERA_HD constexpr Four row(std::int64_t index) const {
    return {index / size.c / size.b, index / size.c % size.b, index % size.c, 0};
  }
  TESSERA_HD constexpr std::int64_t factors() const { return count.volume(); }
  /// The factors that the elements of a row meet, `scale_stride.d` apart.
  TESSERA_HD constexpr float* factors_of(const Four& at) const {
    return scale + Four{at.a / box.a, at.b / box.b, at.c / box.c, 0}.times(scale_stride);
  }
  TESSERA_HD constexpr float* factor(std::int64_t index) const {
    return scale + box_at(index).times(scale_stride);
  }

  /// Part of a row: `length` elements from `at` on, none if it lies outside of the tensor.
  struct Run {
    Four at;
    std::int64_t length = 0;
  };
  /// Rows of a box, those outside of the tensor included.
  TESSERA_HD constexpr std::int64_t runs_per_box() const { return box.a * box.b * box.c; }
  TESSERA_HD constexpr std::int64_t runs() const {
    return size.volume() == 0 ? 0 : factors() * runs_per_box();
  }
  /// Run `index` of all in the order of their factors: those of factor 0 first.
  TESSERA_HD constexpr Run run(std::int64_t index) const {
    const std::int64_t each = runs_per_box(), rest = index % each;
    const Four first = box_at(index / each);
    Run run;
    run.at = {first.a * box.a + rest / box.c / box.b, first.b * box.b + rest / box.c % box.b,
              first.c * box.c + rest % box.c, first.d * box.d};
    if (run.at.a >= size.a || run.at.b >= size.b || run.at.c >= size.c) return run;
    const std::int64_t left = size.d - run.at.d;
    run.length = left < box.d ? left : box.d;
    return run;
  }

 private:
  TESSERA_HD constexpr Four box_at(std::int64_t index) const {
    return {index / count.d / count.c / count.b, index / count.d / count.c % count.b,
            index / count.d % count.c, index % count.d};
  }
};

}  // namespace tessera::planning
