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
    {.name = "sm90_matmul_128x256",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 128, .n = 256, .k = 64, .stages = 4, .warpgroups = 2},
     .why = "fewest bytes from L2 for each multiplication; each warpgroup takes 64 rows",
     .measured = ""},
    {.name = "sm90_matmul_64x256",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 64, .n = 256, .k = 64, .stages = 5, .warpgroups = 2},
     .why = "blocks of 64 rows; each warpgroup takes 128 columns",
     .measured = ""},
    {.name = "sm90_matmul_128x128",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 6, .warpgroups = 2},
     .why = "few tiles, or few columns: more blocks of threads share the work",
     .measured = ""},
};

}  // namespace tessera::planning
