#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Products of a sparse matrix, in blocks of any multiple of 16, with few columns. `times`: of 16
// rows and up to 32 of a block's depth, and of a round of thread blocks.
inline constexpr unsigned kFewColumnsDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm80BsrRows[] = {
    {.name = "sm80_bsr_m16_n8_k32_s1",
     .tile = {.m = 16, .n = 8, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = kFewColumnsDtypes,
     .times = {.step_ns = 22, .tile_ns = 2900},
     .why = "up to 8 columns: stored blocks are read once, straight into registers",
     .measured = "1 token, W 14608 x 2816, block 16, density .3: 19.6 us, 1.53x faster than the "
                 "dense product in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm80_bsr_m16_n16_k32_s1",
     .tile = {.m = 16, .n = 16, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = kFewColumnsDtypes,
     .times = {.step_ns = 29, .tile_ns = 2900},
     .why = "up to 16 columns: stored blocks are read once, straight into registers",
     .measured = "14 tokens, W 2880 x 1056, block 16, density .1: 4.3 us, 1.28x faster than the "
                 "dense product in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm80_bsr_m16_n32_k32_s1",
     .tile = {.m = 16, .n = 32, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = kFewColumnsDtypes,
     .times = {.step_ns = 33, .tile_ns = 2900},
     .why = "up to 32 columns: stored blocks are read once, straight into registers",
     .measured = ""},
    {.name = "sm80_bsr_m16_n64_k32_s1",
     .tile = {.m = 16, .n = 64, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = kFewColumnsDtypes,
     .times = {.step_ns = 61, .tile_ns = 2900},
     .why = "tens of columns, or very few stored blocks: no step of the depth without a block",
     .measured = "10464 x 15392, butterfly, block 32, 114 columns: 26.0 us; Blocked-ELL 43.8 in "
                 "one run: H100, CUDA 13.0, 2026-11-25"},
};

}  // namespace tessera::planning
