#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// One row per arithmetic. The library chooses the tile, so none is stated.
inline constexpr KernelRow kSm80CublasLtRows[] = {
    {.name = "sm80_cublaslt_f16_bf16",
     .tile = {},
     .dtypes = core::dtypes({DType::f16, DType::bf16}),
     .why = "cuBLASLt: dense products on tensor cores, sums in fp32",
     .measured = ""},
    {.name = "sm80_cublaslt_f32",
     .tile = {},
     .dtypes = core::dtypes({DType::f32}),
     .why = "cuBLASLt: dense products in fp32, not TF32",
     .measured = ""},
    {.name = "sm80_cublaslt_e4m3_e5m2",
     .tile = {},
     .dtypes = core::kFp8,
     .why = "cuBLASLt: dense products of FP8 on tensor cores, sums in fp32, not the fast ones",
     .measured = ""},
};

}  // namespace tessera::planning
