#pragma once

#include <cfloat>
#include <cstdint>

#include <tessera/tensor.hpp>

#include "src/core/half.hpp"
#include "src/walk/list_walk.hpp"

// Caches of keys and values after their tensors have been checked: which rows are converted, where
// new ones go, and their factors. The same arithmetic runs on the host and on the device.
namespace tessera::planning {

/// Rows [outer, inner, heads, dim]; strides count elements.
struct HeadRows {
  void* data = nullptr;
  DType dtype = DType::none;
  std::int64_t outer = 0, inner = 0, head = 0, col = 0;

  TESSERA_HD constexpr std::int64_t at(std::int64_t o, std::int64_t i, std::int64_t h) const {
    return o * outer + i * inner + h * head;
  }
};
/// Of a tensor [inner, heads, dim] or [outer, inner, heads, dim].
inline HeadRows head_rows(const Tensor& t) {
  return {t.data,
          t.dtype,
          t.rank == 4 ? t.stride(0) : 0,
          t.stride(t.rank - 3),
          t.stride(t.rank - 2),
          t.stride(t.rank - 1)};
}

/// Factors by outer index and head; a stride is 0 where all share one.
struct HeadScale {
  float* data = nullptr;
  std::int64_t outer = 0, head = 0;

  TESSERA_HD constexpr float* at(std::int64_t o, std::int64_t h) const {
    return data + o * outer + h * head;
  }
  TESSERA_HD constexpr float of(std::int64_t o, std::int64_t h) const {
    return data ? *at(o, h) : 1.0f;
  }
};
inline HeadScale head_scale(const Tensor& t) {
  if (!t) return {};
  return {static_cast<float*>(t.data), t.rank == 2 ? t.stride(0) : 0,
          t.size(t.rank - 1) > 1 ? t.stride(t.rank - 1) : 0};
}

TESSERA_HD constexpr std::uint8_t e4m3_of(float value, float scale) {
  return core::e4m3_from_float(value / scale);
}

/// The magnitude that decides on a factor: 0 for NaN and infinities.
TESSERA_HD constexpr float finite_magnitude(float x) {
  const float magnitude = x < 0 ? -x : x;
  return magnitude <= FLT_MAX ? magnitude : 0.0f;
}
/// The factor for a largest magnitude. A division by it does not overflow.
TESSERA_HD constexpr float scale_for(float largest) {
  if (largest == 0.0f) return 1.0f;
  const float scale = largest / 448.0f;
  return scale < FLT_MIN ? FLT_MIN : scale;
}

struct QuantizeShape {
  std::int64_t outer = 1, inner = 0, heads = 0, dim = 0;
  HeadRows x, out;
  HeadScale scale;
  std::int64_t scale_outer = 1, scale_heads = 1;  // factors: 1, or outer and heads

  TESSERA_HD constexpr std::int64_t rows() const { return outer * inner * heads; }
  TESSERA_HD constexpr std::int64_t factors() const { return scale_outer * scale_heads; }
  TESSERA_HD constexpr std::int64_t rows_per_factor() const {
    return factors() > 0 ? rows() / factors() : 0;
  }

  struct Row {
    std::int64_t outer, inner, head;
  };
  /// Row `index` of all rows in the order of their factors: those of factor 0 first.
  TESSERA_HD constexpr Row row(std::int64_t index) const {
    const std::int64_t each = rows_per_factor(), factor = index / each;
    std::int64_t rest = index % each;
    Row row{};
    row.head = scale_heads == heads ? factor % scale_heads : rest % heads;
    if (scale_heads != heads) rest /= heads;
    row.inner = rest % inner;
    row.outer = scale_outer == outer ? factor / scale_heads : rest / inner;
    return row;
  }
};

/// Keys or values of `append`.
struct AppendRows {
  HeadRows from, to;
  HeadScale scale;
  std::int64_t dim = 0;
};
struct AppendShape {
  std::int64_t batch = 0, tokens = 0, heads = 0;  // tokens of all sequences
  std::int64_t length = 0;                        // of each sequence without offsets
  Indices offsets;                                // or null
  std::int64_t offsets_stride = 1;
  Indices lengths;
  std::int64_t lengths_stride = 1;
  PageView pages;
  AppendRows k, v;

  /// Where a new token comes from and where it goes; `page` is -1 if there is no place for it, or
  /// if it belongs to no sequence.
  struct Place {
    std::int64_t batch = 0, token = 0, page = -1, slot = 0;
  };
  TESSERA_HD constexpr Place place(std::int64_t token) const {
    Place at;
    at.token = token;
    if (offsets) {
      std::int64_t low = 0, high = batch;  // the first sequence that ends after the token
      while (low < high) {
        const std::int64_t middle = (low + high) / 2;
        if (offsets[(middle + 1) * offsets_stride] > token)
          high = middle;
        else
          low = middle + 1;
      }
      at.batch = low;
      if (low == batch || offsets[low * offsets_stride] > token) return at;
      return put(at, token - offsets[low * offsets_stride]);
    }
    at.batch = token / length;
    at.token = token % length;
    return put(at, at.token);
  }

 private:
  TESSERA_HD constexpr Place put(Place at, std::int64_t number) const {
    const std::int64_t position = lengths[at.batch * lengths_stride] + number;
    if (position < 0) return at;
    const PageView::Run run = pages.run(at.batch, position, position + 1);
    at.page = run.page;
    at.slot = run.slot;
    return at;
  }
};

}  // namespace tessera::planning
