#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// The backward pass of attention on Hopper, compiled for sm_90a only. `m`: queries of a step; `n`:
// keys of a thread block, all or half of a key tile;
// `dq_queries`: rows with a second kernel, which computes dQ.
inline constexpr unsigned kAttentionBackwardDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm90AttentionBackwardRows[] = {
    {.name = "sm90_attention_backward_d64_q64_k128_s4",
     .tile = {.m = 64, .n = 128, .k = 64, .stages = 4, .warpgroups = 2, .v = 64},
     .dtypes = kAttentionBackwardDtypes,
     .why = "heads of up to 64",
     .measured = ""},
    {.name = "sm90_attention_backward_d64_q128_k128_s2",
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 2, .warpgroups = 2, .v = 64},
     .dtypes = kAttentionBackwardDtypes,
     .why = "heads of up to 64 and many queries: a step has twice the work of d64_q64_k128_s4's",
     .measured = ""},
    {.name = "sm90_attention_backward_d64_q64_k128_s6_dq128",
     .tile = {.m = 64, .n = 128, .k = 64, .stages = 6, .warpgroups = 2, .v = 64, .dq_queries = 128},
     .dtypes = kAttentionBackwardDtypes,
     .why = "lists in a fixed order, with heads of up to 64: no thread block waits for another",
     .measured = ""},
    {.name = "sm90_attention_backward_d64_q64_k128_s6_lists2_dq128",
     .tile = {.m = 64,
              .n = 128,
              .k = 64,
              .stages = 6,
              .warpgroups = 2,
              .v = 64,
              .row_groups = 2,
              .dq_queries = 128},
     .dtypes = kAttentionBackwardDtypes,
     .why = "lists of 64 rows, with heads of up to 64",
     .measured = ""},
    {.name = "sm90_attention_backward_d96_q64_k128_s3",
     .tile = {.m = 64, .n = 128, .k = 96, .stages = 3, .warpgroups = 2, .v = 96},
     .dtypes = kAttentionBackwardDtypes,
     .why = "heads of up to 96: MMAs leave out a quarter of d128_q64_k128_s3's",
     .measured = ""},
    {.name = "sm90_attention_backward_d128_q64_k128_s3",
     .tile = {.m = 64, .n = 128, .k = 128, .stages = 3, .warpgroups = 2, .v = 128},
     .dtypes = kAttentionBackwardDtypes,
     .why = "heads of up to 128: dK and dV of 128 keys stay in registers",
     .measured = ""},
    {.name = "sm90_attention_backward_d128_q64_k128_s4_dq128",
     .tile =
         {.m = 64, .n = 128, .k = 128, .stages = 4, .warpgroups = 2, .v = 128, .dq_queries = 128},
     .dtypes = kAttentionBackwardDtypes,
     .why = "lists in a fixed order, with heads of up to 128: no thread block waits for another",
     .measured = ""},
    {.name = "sm90_attention_backward_d128_q64_k128_s4_lists2_dq128",
     .tile = {.m = 64,
              .n = 128,
              .k = 128,
              .stages = 4,
              .warpgroups = 2,
              .v = 128,
              .row_groups = 2,
              .dq_queries = 128},
     .dtypes = kAttentionBackwardDtypes,
     .why = "lists of 64 rows, with heads of up to 128",
     .measured = ""},
    {.name = "sm90_attention_backward_d192_v128_q64_k64_s3_dq128",
     .tile =
         {.m = 64, .n = 64, .k = 192, .stages = 3, .warpgroups = 2, .v = 128, .dq_queries = 128},
     .dtypes = kAttentionBackwardDtypes,
     .why = "heads of up to 192 with values of up to 128: dQ in a kernel of its own leaves room "
            "for more stages",
     .measured = ""},
    {.name = "sm90_attention_backward_d192_q64_k64_s3_dq128",
     .tile =
         {.m = 64, .n = 64, .k = 192, .stages = 3, .warpgroups = 2, .v = 192, .dq_queries = 128},
     .dtypes = kAttentionBackwardDtypes,
     .why = "heads of up to 192: dQ in a kernel of its own leaves room for more stages",
     .measured = ""},
    {.name = "sm90_attention_backward_d256_q64_k64_s2_dq128",
     .tile =
         {.m = 64, .n = 64, .k = 256, .stages = 2, .warpgroups = 2, .v = 256, .dq_queries = 128},
     .dtypes = kAttentionBackwardDtypes,
     .why = "heads of up to 256: dQ in a kernel of its own leaves room for more stages",
     .measured = ""},
};

}  // namespace tessera::planning
