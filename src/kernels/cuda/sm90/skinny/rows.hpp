#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Products with few columns. `times`: a step's latency where one thread block is on an SM, and a
// round of tiles.
inline constexpr unsigned kSkinnyDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm90SkinnyRows[] = {
    {.name = "sm90_skinny_m256_n16_k64_s24",
     .tile = {.m = 256, .n = 16, .k = 64, .stages = 24, .warpgroups = 4},
     .dtypes = kSkinnyDtypes,
     .times = {.step_ns = 48, .tile_ns = 1950},
     .why = "up to 16 columns: the other operand is streamed, read once",
     .measured =
         "1.00 of cuBLASLt at 16 rows, 8192 x 8192 weights; 4.3x faster than dense cuBLASLt with W "
         "14336 x 4096, block 64, density .2, 16 tokens: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_skinny_m256_n32_k64_s24",
     .tile = {.m = 256, .n = 32, .k = 64, .stages = 24, .warpgroups = 4},
     .dtypes = kSkinnyDtypes,
     .times = {.step_ns = 48, .tile_ns = 1950},
     .why = "32 columns: the other operand is streamed, read once",
     .measured = "1.01 of cuBLASLt at 32 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_skinny_m256_n64_k64_s24",
     .tile = {.m = 256, .n = 64, .k = 64, .stages = 24, .warpgroups = 4},
     .dtypes = kSkinnyDtypes,
     .times = {.step_ns = 48, .tile_ns = 1950},
     .why = "64 columns: the other operand is streamed, read once",
     .measured =
         "0.94-0.98 of cuBLASLt at 64 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_skinny_m256_n128_k64_s24",
     .tile = {.m = 256, .n = 128, .k = 64, .stages = 24, .warpgroups = 4},
     .dtypes = kSkinnyDtypes,
     .times = {.step_ns = 0, .tile_ns = 1950},
     .why = "128 columns: the other operand is streamed, read once",
     .measured =
         "0.94-0.97 of cuBLASLt at 128 rows, 8192 x 8192 weights; 2.9x faster than dense cuBLASLt "
         "with W 14336 x 4096, block 64, density .2, 128 tokens: H200, CUDA 13.0, 2026-11-21"},
};

}  // namespace tessera::planning
