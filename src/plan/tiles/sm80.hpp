#pragma once

#include "src/plan/tile_table.hpp"

namespace tessera::planning {

// Rows for every tensor-core GPU since Ampere: sm_80 code, and PTX that newer chips translate.
inline constexpr KernelRow kSm80Rows[] = {
    {.name = "sm80_merge",
     .backend = Backend::sm80,
     .ops = ops({Op::merge_states}),
     .tile = {.m = 4},
     .why = "memory-bound: one warp a row, four rows a block",
     .measured = ""},
};

}  // namespace tessera::planning
