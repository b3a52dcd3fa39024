#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Sampled dense products.
inline constexpr unsigned kSddmmDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm90SddmmRows[] = {
    {.name = "sm90_sddmm_m128_n256_k64_s4",
     .tile = {.m = 128, .n = 256, .k = 64, .stages = 4, .warpgroups = 2},
     .dtypes = kSddmmDtypes,
     .why = "blocks of 128 rows: each warpgroup computes 64 of them by 256 gathered columns",
     .measured = "0.91 of cuBLAS at 8192^3 bf16, density .25: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_sddmm_m64_n512_k64_s3",
     .tile = {.m = 64, .n = 512, .k = 64, .stages = 3, .warpgroups = 2},
     .dtypes = kSddmmDtypes,
     .why = "blocks of 64 rows: each warpgroup computes 256 gathered columns",
     .measured = "0.75 of cuBLAS at 8192^3 bf16, density .25: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_sddmm_m32_n512_k64_s3",
     .tile = {.m = 32, .n = 512, .k = 64, .stages = 3, .warpgroups = 2},
     .dtypes = kSddmmDtypes,
     .why = "blocks of 32 rows: gathered columns are the M side of wgmma, which has 64 rows",
     .measured = "0.37 of cuBLAS at 8192^3 bf16, density .25: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_sddmm_m16_n512_k64_s3",
     .tile = {.m = 16, .n = 512, .k = 64, .stages = 3, .warpgroups = 2},
     .dtypes = kSddmmDtypes,
     .why = "blocks of 16 rows: gathered columns are the M side of wgmma, which has 64 rows",
     .measured = "0.14 of cuBLAS at 8192^3 bf16, density .25: H200, CUDA 13.0, 2026-11-21"},
};

}  // namespace tessera::planning
