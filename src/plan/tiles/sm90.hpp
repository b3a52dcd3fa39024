#pragma once

#include "src/plan/tile_table.hpp"

namespace tessera::planning {

// Hopper rows, compiled for sm_90a alone.
inline constexpr KernelRow kSm90Rows[] = {
    {.name = "sm90_merge",
     .backend = Backend::sm90,
     .ops = ops({Op::merge_states}),
     .tile = {.m = 8},
     .why = "memory-bound: one warp a row, eight rows a block keep more loads in flight",
     .measured = ""},
};

}  // namespace tessera::planning
