#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Products with one sparse side, in blocks of any multiple of 16. `times`: fitted to 115 times of
// random shapes (H100 and H200, CUDA 13.0, 2026-11-26, graph replays; 90% within .85 to 1.14).
inline constexpr unsigned kBsrDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm90BsrRows[] = {
    {.name = "sm90_bsr_m384_n128_k64_s5",
     .tile = {.m = 384, .n = 128, .k = 64, .stages = 5, .warpgroups = 2},
     .dtypes = kBsrDtypes,
     .times = {.step_ns = 182, .tile_ns = 4200},
     .why = "rows of blocks share their loads of the dense matrix; blocks from 16 x 16",
     .measured = "0.67 of cuBLAS at block 64, 0.32 at 32, 0.18 at 16, 8192^3 bf16, density .25: "
                 "H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_bsr_m64_n64_k64_s4",
     .tile = {.m = 64, .n = 64, .k = 64, .stages = 4, .warpgroups = 1},
     .dtypes = kBsrDtypes,
     .times = {.step_ns = 409, .tile_ns = 800},
     .why = "few columns: stored blocks are streamed, each read once",
     .measured = "2.2x faster than cuBLAS dense: 16 tokens, W 14336 x 4096, block 64, density "
                 ".2: H200, CUDA 13.0, 2026-11-21"},
};

}  // namespace tessera::planning
