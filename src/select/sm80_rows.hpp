#pragma once

#include "src/select/tile_table.hpp"

namespace tessera::planning {

// Rows for every tensor-core GPU since Ampere: sm_80 code, and PTX that newer chips translate.
inline constexpr KernelRow kSm80Rows[] = {
    {.name = "sm80_merge",
     .backend = Backend::sm80,
     .ops = ops({Op::merge_states}),
     .tile = {.m = 4},
     .why = "memory-bound: one warp a row, four rows a block",
     .measured = ""},
    {.name = "sm80_spgemm",
     .backend = Backend::sm80,
     .ops = ops({Op::spgemm}),
     .tile = {.m = 32, .n = 32, .k = 32, .stages = 1, .warpgroups = 2},
     .why = "any block size, strides and float type, in f32 without tensor cores",
     .measured = ""},
};

}  // namespace tessera::planning
