#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Products with one sparse side, in blocks of any multiple of 16, with many columns. `times` are
// zero: the family estimates them from the tile.
inline constexpr unsigned kSm80ProductDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm80ProductRows[] = {
    {.name = "sm80_product_m128_n256_k64_s3",
     .tile = {.m = 128, .n = 256, .k = 64, .stages = 3, .warpgroups = 2},
     .dtypes = kSm80ProductDtypes,
     .why = "rows of blocks share their loads of the dense matrix; two steps are loaded ahead",
     .measured =
         "318 TFLOPS at block 128, 256 at 64, 147 at 32, 8192^3 bf16, density .25: H200, CUDA "
         "13.0, 2026-11-28"},
    {.name = "sm80_product_m128_n256_k64_s2",
     .tile = {.m = 128, .n = 256, .k = 64, .stages = 2, .warpgroups = 2},
     .dtypes = kSm80ProductDtypes,
     .why = "rows of blocks share their loads of the dense matrix; one step is loaded ahead, in 99 "
            "KiB",
     .measured = ""},
};

}  // namespace tessera::planning
