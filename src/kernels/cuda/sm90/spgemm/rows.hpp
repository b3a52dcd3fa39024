#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Sparse times sparse, in blocks of 128 and 64.
inline constexpr unsigned kSpgemmDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm90SpgemmRows[] = {
    {.name = "sm90_spgemm_m128_n128_k64_s2",
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 2, .warpgroups = 2},
     .dtypes = kSpgemmDtypes,
     .why = "blocks of 128: each warpgroup computes 64 rows of a block of the result",
     .measured = "0.37 of cuBLAS at 8192^3 bf16, density .1 x .1, FLOPs of multiplied blocks: "
                 "H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_spgemm_m64_n64_k64_s3",
     .tile = {.m = 64, .n = 64, .k = 64, .stages = 3, .warpgroups = 2},
     .dtypes = kSpgemmDtypes,
     .why = "blocks of 64: four adjacent blocks of the result share the loads of a",
     .measured = "0.24 of cuBLAS at 8192^3 bf16, density .1 x .1, FLOPs of multiplied blocks: "
                 "H200, CUDA 13.0, 2026-11-21"},
};

}  // namespace tessera::planning
