#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// The backward pass of attention on every GPU since Ampere. `m`: queries of a step; `n`: keys of a
// thread block, all of a key tile or a part of it. `times` are zero: the family estimates them from
// the tile, as no row has been measured yet.
inline constexpr unsigned kSm80AttentionBackwardDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm80AttentionBackwardRows[] = {
    {.name = "sm80_attention_backward_d64_q64_k128_s2_w8",
     .tile = {.m = 64, .n = 128, .k = 64, .stages = 2, .warpgroups = 2, .v = 64},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 64: 128 keys share each load of Q and dO",
     .measured = ""},
    {.name = "sm80_attention_backward_d64_q64_k64_s1_w4",
     .tile = {.m = 64, .n = 64, .k = 64, .stages = 1, .warpgroups = 1, .v = 64},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 64 where an SM holds three thread blocks of 50 KiB",
     .measured = ""},
    {.name = "sm80_attention_backward_d96_q64_k128_s2_w8",
     .tile = {.m = 64, .n = 128, .k = 96, .stages = 2, .warpgroups = 2, .v = 96},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 96",
     .measured = ""},
    {.name = "sm80_attention_backward_d96_q64_k64_s2_w8",
     .tile = {.m = 64, .n = 64, .k = 96, .stages = 2, .warpgroups = 2, .v = 96},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 96 with 100 KiB of shared memory",
     .measured = ""},
    {.name = "sm80_attention_backward_d128_q64_k128_s2_w8",
     .tile = {.m = 64, .n = 128, .k = 128, .stages = 2, .warpgroups = 2, .v = 128},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 128: dK and dV of 128 keys stay in registers",
     .measured = ""},
    {.name = "sm80_attention_backward_d128_q64_k64_s1_w8",
     .tile = {.m = 64, .n = 64, .k = 128, .stages = 1, .warpgroups = 2, .v = 128},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 128 with 100 KiB of shared memory",
     .measured = ""},
    {.name = "sm80_attention_backward_d192_v128_q64_k64_s2_w8",
     .tile = {.m = 64, .n = 64, .k = 192, .stages = 2, .warpgroups = 2, .v = 128},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 192 with values of up to 128",
     .measured = ""},
    {.name = "sm80_attention_backward_d192_v128_q64_k64_s1_w8",
     .tile = {.m = 64, .n = 64, .k = 192, .stages = 1, .warpgroups = 2, .v = 128},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "the same with 100 KiB of shared memory",
     .measured = ""},
    {.name = "sm80_attention_backward_d192_q64_k64_s2_w8",
     .tile = {.m = 64, .n = 64, .k = 192, .stages = 2, .warpgroups = 2, .v = 192},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 192 with values of up to 192",
     .measured = ""},
    {.name = "sm80_attention_backward_d192_q64_k32_s1_w8",
     .tile = {.m = 64, .n = 32, .k = 192, .stages = 1, .warpgroups = 2, .v = 192},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "the same with 100 KiB of shared memory",
     .measured = ""},
    {.name = "sm80_attention_backward_d256_q64_k64_s1_w8",
     .tile = {.m = 64, .n = 64, .k = 256, .stages = 1, .warpgroups = 2, .v = 256},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 256: dK and dV of 64 keys stay in registers",
     .measured = ""},
    {.name = "sm80_attention_backward_d256_q64_k32_s1_w8",
     .tile = {.m = 64, .n = 32, .k = 256, .stages = 1, .warpgroups = 2, .v = 256},
     .dtypes = kSm80AttentionBackwardDtypes,
     .why = "heads of up to 256 with 100 KiB of shared memory: V stays in registers",
     .measured = ""},
};

}  // namespace tessera::planning
