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
     .measured =
         "1.00 of cuBLAS at 8192^3 bf16, 595 TFLOPS at density .25: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_128x128",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 6, .warpgroups = 2},
     .why = "few tiles, or few columns: more blocks of threads share the work",
     .measured = "0.91 of cuBLAS at 8192^3 bf16, best at few tokens: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_64x256",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 64, .n = 256, .k = 64, .stages = 5, .warpgroups = 2},
     .why = "blocks of 64 rows; each warpgroup takes 128 columns",
     .measured =
         "406 TFLOPS at 8192^3 bf16, blocks of 64, density .25: H200, CUDA 13.0, 2026-11-21"},
};

}  // namespace tessera::planning
