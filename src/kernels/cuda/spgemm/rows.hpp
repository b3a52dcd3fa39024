#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

inline constexpr KernelRow kSm80SpgemmRows[] = {
    {.name = "sm80_spgemm_m32_n32_k32_s1",
     .tile = {.m = 32, .n = 32, .k = 32, .stages = 1, .warpgroups = 2},
     .dtypes = core::kFloats,
     .why = "any block size, strides and float type, in f32 without tensor cores",
     .measured = ""},
};

}  // namespace tessera::planning
