#pragma once

#include <cstdint>

#include <tessera/tensor.hpp>

// What TMA requires of a tensor: one contiguous dimension; all other strides, and the address, are
// multiples of 16 bytes.
namespace tessera::planning {

inline constexpr std::int64_t kTmaAlignment = 16;

inline bool has_no_elements(const Tensor& t) {
  for (int i = 0; i < t.rank; ++i)
    if (t.size(i) == 0) return true;
  return false;
}

/// Whether TMA can read the tensor with `contiguous` as its contiguous dimension.
inline bool lies_along(const Tensor& t, int contiguous) {
  if (t.stride(contiguous) != 1 && t.size(contiguous) > 1) return false;
  for (int i = 0; i < t.rank; ++i) {
    const bool is_pitch = t.stride(i) > 0 && t.stride(i) * size_of(t.dtype) % kTmaAlignment == 0;
    if (i != contiguous && t.size(i) > 1 && !is_pitch) return false;
  }
  return true;
}

/// Whether the address is aligned for TMA. A null pointer counts as aligned.
inline bool begins_aligned(const Tensor& t) {
  return reinterpret_cast<std::uintptr_t>(t.data) % kTmaAlignment == 0;
}

}  // namespace tessera::planning
