#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Dense and grouped products, and products with one sparse side in blocks of multiples of 64.
// `times` of the first two rows: fitted to sparse products of 92 random shapes (H200, CUDA 13.0,
// 2026-11-26, graph replays; 90% within .86 to 1.27); of the others: by their bytes from L2.
inline constexpr unsigned kMatmulDtypes = core::dtypes({DType::f16, DType::bf16});
// FP8: rows that differ from those of 16 bits in their consumers.
inline constexpr unsigned kNarrowMatmulDtypes = core::dtypes({DType::e4m3});
inline constexpr KernelRow kSm90MatmulRows[] = {
    {.name = "sm90_matmul_m128_n256_k64_s4",
     .tile = {.m = 128, .n = 256, .k = 64, .stages = 4, .warpgroups = 2},
     .dtypes = kMatmulDtypes,
     .times = {.step_ns = 610, .tile_ns = 1150},
     .why = "fewest bytes from L2 per FLOP; each warpgroup computes 64 rows",
     .measured = "1.01-1.04 of cuBLAS at 8192^3 bf16, at density .25 .93 (blocks of 128) and .74 "
                 "(64): H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_m128_n128_k64_s5",
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 5, .warpgroups = 2},
     .dtypes = kMatmulDtypes,
     .times = {.step_ns = 380, .tile_ns = 1300},
     .why = "few tiles or few columns: smaller tiles occupy more SMs",
     .measured =
         "0.78-0.80 of cuBLASLt at 128 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_m128_n64_k64_s6",
     .tile = {.m = 128, .n = 64, .k = 64, .stages = 6, .warpgroups = 2},
     .dtypes = kMatmulDtypes,
     .times = {.step_ns = 300, .tile_ns = 1000},
     .why = "groups of 64 rows, and short sides that have to be copied first",
     .measured =
         "0.87-0.89 of cuBLASLt at 64 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_m128_n32_k64_s8",
     .tile = {.m = 128, .n = 32, .k = 64, .stages = 8, .warpgroups = 2},
     .dtypes = kMatmulDtypes,
     .times = {.step_ns = 250, .tile_ns = 1000},
     .why = "groups of 32 rows, and short sides that have to be copied first",
     .measured =
         "0.89-0.90 of cuBLASLt at 32 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_m128_n16_k64_s8",
     .tile = {.m = 128, .n = 16, .k = 64, .stages = 8, .warpgroups = 2},
     .dtypes = kMatmulDtypes,
     .times = {.step_ns = 230, .tile_ns = 1000},
     .why = "groups of up to 16 rows, and short sides that have to be copied first",
     .measured =
         "0.87-0.92 of cuBLASLt at 1 to 16 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_m128_n256_k128_s4",
     .tile = {.m = 128, .n = 256, .k = 128, .stages = 4, .warpgroups = 2},
     .dtypes = kNarrowMatmulDtypes,
     .times = {.step_ns = 1460, .tile_ns = 300},
     .why = "FP8; fewest bytes from L2 per FLOP; each step is summed up by itself",
     .measured = "8192^3: 724 TFLOPS at density .25 in blocks of 128, dense 760, with 1 x 128 "
                 "factors 663 and 688: H200, CUDA 13.0, 2026-11-27"},
    {.name = "sm90_matmul_m128_n128_k128_s6",
     .tile = {.m = 128, .n = 128, .k = 128, .stages = 6, .warpgroups = 2},
     .dtypes = kNarrowMatmulDtypes,
     .times = {.step_ns = 800, .tile_ns = 400},
     .why = "FP8; few tiles, few columns or small groups",
     .measured = "594 TFLOPS for 64 experts of 128 rows, where n256 reaches 348: H200, CUDA 13.0, "
                 "2026-11-27"},
    {.name = "sm90_matmul_m128_n256_k64_s7",
     .tile = {.m = 128, .n = 256, .k = 64, .stages = 7, .warpgroups = 2},
     .dtypes = kNarrowMatmulDtypes,
     .times = {.step_ns = 970, .tile_ns = 200},
     .why = "FP8 in stored blocks with a depth of 64",
     .measured = "8192^3 in blocks of 64: 382 TFLOPS at density .25, 426 at .5: H200, CUDA 13.0, "
                 "2026-11-27"},
    {.name = "sm90_matmul_m128_n128_k64_s12",
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 12, .warpgroups = 2},
     .dtypes = kNarrowMatmulDtypes,
     .times = {.step_ns = 590, .tile_ns = 150},
     .why = "FP8 in stored blocks with a depth of 64; few tiles or few columns",
     .measured = "8192^3 in blocks of 64: 329 TFLOPS at density .25: H200, CUDA 13.0, 2026-11-27"},
};

}  // namespace tessera::planning
