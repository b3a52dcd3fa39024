#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Products of a sparse matrix, in blocks of any multiple of 16, with few columns.
inline constexpr unsigned kFewColumnsDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm80BsrRows[] = {
    {.name = "sm80_bsr_m16_n8_k32_s1",
     .tile = {.m = 16, .n = 8, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = kFewColumnsDtypes,
     .why = "up to 8 columns: stored blocks are read once, straight into registers",
     .measured = ""},
    {.name = "sm80_bsr_m16_n16_k32_s1",
     .tile = {.m = 16, .n = 16, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = kFewColumnsDtypes,
     .why = "up to 16 columns: stored blocks are read once, straight into registers",
     .measured = ""},
    {.name = "sm80_bsr_m16_n32_k32_s1",
     .tile = {.m = 16, .n = 32, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = kFewColumnsDtypes,
     .why = "up to 32 columns: stored blocks are read once, straight into registers",
     .measured = ""},
    {.name = "sm80_bsr_m16_n64_k32_s1",
     .tile = {.m = 16, .n = 64, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = kFewColumnsDtypes,
     .why = "tens of columns, or very few stored blocks: no step of the depth without a block",
     .measured = ""},
};

}  // namespace tessera::planning
