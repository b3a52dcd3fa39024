#pragma once

#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/cuda/attention/walk.hpp"
#include "src/kernels/family.hpp"

// Hopper's attention rows. Their layout is that of all attention rows.
namespace tessera::planning {

/// Whether the keys or values of a tile may have several factors: a score transform.
inline bool has_factors_by_step(const AttentionShape& s) {
  return s.dtype == DType::e4m3 &&
         (s.kv_scales_by_rows || (s.has_kv_scales && s.kv_layout == KvLayout::paged));
}

KernelFamily sm90_attention_family();

}  // namespace tessera::planning
