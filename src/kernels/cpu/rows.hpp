#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// `tile`: what one thread computes at a time. Register tiles follow from the vector width and are
// defined with the kernels.
constexpr KernelRow cpu_product_row(const char* name, unsigned dtypes = core::kFloats) {
  return {
      .name = name,
      .tile = {.m = 64, .n = 384, .k = 512},
      .dtypes = dtypes,
      .why =
          "one operand packed into strips, the other read in place: 64 rows by 512 deep stay in L2",
      .measured = "248 GFLOP/s per core at f32 4096 x 4096 x 1024, AVX-512 (Zen 5), 2026-11-21"};
}

/// `narrow`: the dtypes that k and v, and q as well, may have besides.
constexpr KernelRow cpu_attention_row(const char* name, unsigned narrow = 0) {
  return {.name = name,
          .tile = {.m = 128, .n = 192},
          .dtypes = core::kFloats | narrow,
          .narrow_keys = narrow,
          .why = "128 queries in vector lanes; the scores of a strip against 192 keys stay in L1",
          .measured = "194 GFLOP/s per core at f32 4096 keys, dim 64, AVX-512 (Zen 5), 2026-11-21"};
}

inline constexpr KernelRow kCpuMatmulRows[] = {
    cpu_product_row("cpu_matmul_m64_n384_k512", core::kValues)};
inline constexpr KernelRow kCpuSddmmRows[] = {cpu_product_row("cpu_sddmm_m64_n384_k512")};
inline constexpr KernelRow kCpuSpgemmRows[] = {cpu_product_row("cpu_spgemm_m64_n384_k512")};
inline constexpr KernelRow kCpuAttentionRows[] = {
    cpu_attention_row("cpu_attention_q128_k192", core::dtypes({DType::e4m3}))};
inline constexpr KernelRow kCpuAttentionBackwardRows[] = {
    cpu_attention_row("cpu_attention_backward_q128_k192")};
inline constexpr KernelRow kCpuMergeRows[] = {{.name = "cpu_merge_r1",
                                               .tile = {.m = 1},
                                               .dtypes = core::kFloats,
                                               .why = "one pass over the partial results",
                                               .measured = ""}};

}  // namespace tessera::planning
