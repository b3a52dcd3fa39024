#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

inline constexpr KernelRow kSm90MergeRows[] = {
    {.name = "sm90_merge_r8",
     .tile = {.m = 8},
     .dtypes = core::kFloats,
     .why = "memory-bound: one warp per row; eight rows per thread block keep more loads in flight",
     .measured = ""},
};
inline constexpr KernelRow kSm80MergeRows[] = {
    {.name = "sm80_merge_r4",
     .tile = {.m = 4},
     .dtypes = core::kFloats,
     .why = "memory-bound: one warp per row, four rows per thread block",
     .measured = ""},
};

}  // namespace tessera::planning
