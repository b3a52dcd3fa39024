#pragma once

#include <cstdint>

#include <tessera/tensor.hpp>

#include "src/walk/list_walk.hpp"
#include "src/walk/quantize.hpp"

// Caches of keys and values after their tensors have been checked: where new ones go, and their
// factors. The same arithmetic runs on the host and on the device.
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
