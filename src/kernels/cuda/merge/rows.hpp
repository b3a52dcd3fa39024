#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

inline constexpr KernelRow kSm90MergeRows[] = {
    {.name = "sm90_merge_r8",
     .tile = {.m = 8},
     .dtypes = core::kFloats,
     .why = "memory-bound: one warp a row, eight rows a block keep more loads in flight",
     .measured = ""},
};
inline constexpr KernelRow kSm80MergeRows[] = {
    {.name = "sm80_merge_r4",
     .tile = {.m = 4},
     .dtypes = core::kFloats,
     .why = "memory-bound: one warp a row, four rows a block",
     .measured = ""},
};

}  // namespace tessera::planning
