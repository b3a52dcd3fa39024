#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Hopper attention, compiled for sm_90a alone.
inline constexpr unsigned kAttentionDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr KernelRow kSm90AttentionRows[] = {
    {.name = "sm90_attention_d64_q192_k128_s3",
     .tile = {.m = 192, .n = 128, .k = 64, .stages = 3, .warpgroups = 3, .v = 64},
     .dtypes = kAttentionDtypes,
     .why = "heads of up to 64: a third warpgroup uses exp throughput that two leave idle",
     .measured = "555 TFLOPS at S 16384, bf16; fa4 517, cuDNN 448 in one run: H200, CUDA 13.0, "
                 "2026-11-23"},
    {.name = "sm90_attention_d64_q128_k128_s5",
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 5, .warpgroups = 2, .v = 64},
     .dtypes = kAttentionDtypes,
     .why = "softcap, and scales of zero or less, with heads of 64: two warpgroups have registers "
            "for that",
     .measured =
         "lists of 128 x 128, density .125: 486 TFLOPS at S 32768, bf16, where "
         "d64_q128_k64_s6_split2 gives 499; bursts in one run: H200, CUDA 13.0, 2026-11-22"},
    {.name = "sm90_attention_d64_q256_k64_s6",
     .tile = {.m = 256, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64},
     .dtypes = kAttentionDtypes,
     .why = "short walks with heads of 64: four warpgroups hide each other's latency",
     .measured = "456 TFLOPS at S 1024, bf16, causal 356; cuDNN 398 and 305 in one run: H200, CUDA "
                 "13.0, 2026-11-23"},
    {.name = "sm90_attention_d64_q128_k64_s6_split2",
     .tile = {.m = 128, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64, .kv_splits = 2},
     .dtypes = kAttentionDtypes,
     .why =
         "one tile per SM, or lists of 128 rows, with heads of 64: two pairs of warpgroups split "
         "the keys to hide latency",
     .measured = "B1 H8 S 2048 by graph replay: 23.5 us; cuDNN 23.8, fa4 26.5; lists of 128 x 128, "
                 "density .125: 476 TFLOPS at S 32768; fa4 433; each in one run: H200, CUDA 13.0, "
                 "2026-11-23"},
    {.name = "sm90_attention_d64_q64_k128_s4_split2",
     .tile = {.m = 64, .n = 128, .k = 64, .stages = 4, .warpgroups = 2, .v = 64, .kv_splits = 2},
     .dtypes = kAttentionDtypes,
     .why = "few queries with heads of 64: twice as many tiles, whose keys two warpgroups split",
     .measured =
         "B1 H8 S 512 by graph replay: 6.4 us; cuDNN 10.0; lists of 64 x 64, density "
         ".125: 413 TFLOPS at S 32768; fa4 294; each in one run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_d64_q256_k64_s6_lists4",
     .tile = {.m = 256, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64, .row_groups = 4},
     .dtypes = kAttentionDtypes,
     .why = "lists of 64 rows with heads of 64",
     .measured =
         "BigBird, B16 H12 S 4096: 283 TFLOPS, bf16; flex 271, fa4 207 in one run: H200, CUDA "
         "13.0, 2026-11-22"},
    {.name = "sm90_attention_d96_q128_k128_s3",
     .tile = {.m = 128, .n = 128, .k = 96, .stages = 3, .warpgroups = 2, .v = 96},
     .dtypes = kAttentionDtypes,
     .why = "heads of up to 96: lists, softcap, short walks",
     .measured =
         "495 TFLOPS at S 1024, bf16; lists of 128 x 128, density .5: 530 at S 4096: H200, CUDA "
         "13.0, 2026-11-22"},
    {.name = "sm90_attention_d96_q192_k64_s4",
     .tile = {.m = 192, .n = 64, .k = 96, .stages = 4, .warpgroups = 3, .v = 96},
     .dtypes = kAttentionDtypes,
     .why = "long walks with heads of up to 96: a third warpgroup hides latency of the other two",
     .measured =
         "597 TFLOPS at S 16384, bf16, causal 585; fa4 598 and 571, cuDNN 464 and 420 in one "
         "run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_d128_q128_k128_s2",
     .tile = {.m = 128, .n = 128, .k = 128, .stages = 2, .warpgroups = 2, .v = 128},
     .dtypes = kAttentionDtypes,
     .why = "heads of up to 128: 64 queries per warpgroup",
     .measured = "lists of 128 x 128, bf16, S 32768, density .5, .25 and .125: 674, 664 and 639 "
                 "TFLOPS; fa4 "
                 "623, 612 and 591 in one run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_d128_q128_k64_s4",
     .tile = {.m = 128, .n = 64, .k = 128, .stages = 4, .warpgroups = 2, .v = 128},
     .dtypes = kAttentionDtypes,
     .why = "short walks under a causal mask or a window: steps of 64 keys, so that consumers skip "
            "those "
            "that their rows do not see",
     .measured = "198 TFLOPS at S 256, causal, bf16, 336 at S 640; d128_q192_k64_s3 180 and 328, "
                 "d128_q128_k128_s2 177 and 322 in one run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_d128_q192_k64_s3",
     .tile = {.m = 192, .n = 64, .k = 128, .stages = 3, .warpgroups = 3, .v = 128},
     .dtypes = kAttentionDtypes,
     .why = "long walks with heads of up to 128: more rows share the loads from L2",
     .measured =
         "692 TFLOPS at S 16384, bf16, causal 672; fa4 659 and 610, cuDNN 604 and 549 in one "
         "run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_d128_q192_k64_s4",
     .tile = {.m = 192, .n = 64, .k = 128, .stages = 4, .warpgroups = 3, .v = 128},
     .dtypes = kAttentionDtypes,
     .why = "windows over long sequences with heads of up to 128: with one more stage, warpgroups "
            "join "
            "a tile late",
     .measured = "521 TFLOPS at S 16384, causal, a window of 1024, bf16; fa4 451 in one run: H200, "
                 "CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_d128_q128_k128_s2_lists2",
     .tile =
         {.m = 128, .n = 128, .k = 128, .stages = 2, .warpgroups = 2, .v = 128, .row_groups = 2},
     .dtypes = kAttentionDtypes,
     .why = "lists of 64 rows with heads of up to 128: steps of keys that the same lists name",
     .measured = "lists of 64 x 64, density .125, S 32768, bf16: 482 TFLOPS, 618 where four rows "
                 "are alike; fa4 413 and 422 in one run: H200, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d128_q64_k64_s4_split2",
     .tile = {.m = 64, .n = 64, .k = 128, .stages = 4, .warpgroups = 2, .v = 128, .kv_splits = 2},
     .dtypes = kAttentionDtypes,
     .why = "few queries with heads of up to 128: twice as many tiles, whose keys two warpgroups "
            "split",
     .measured = "lists of 64 x 64, density .125: 478 TFLOPS at S 32768, bf16, where "
                 "d128_q128_k128_s2_lists2 gave 450 before its steps had 128 keys: H200, CUDA "
                 "13.0, 2026-11-22"},
    {.name = "sm90_attention_d192_v128_q128_k128_s2",
     .tile = {.m = 128, .n = 128, .k = 192, .stages = 2, .warpgroups = 2, .v = 128},
     .dtypes = kAttentionDtypes,
     .why = "heads of up to 192 with values of up to 128",
     .measured = "714 TFLOPS at S 16384, bf16; fa4 674 in one run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_d256_q128_k64_s2",
     .tile = {.m = 128, .n = 64, .k = 256, .stages = 2, .warpgroups = 2, .v = 256},
     .dtypes = kAttentionDtypes,
     .why = "heads of up to 256: shorter steps, as the O accumulator fills half of the registers",
     .measured = "720 TFLOPS at S 16384, bf16; fa4 714 in one run: H200, CUDA 13.0, 2026-11-23"},
};

}  // namespace tessera::planning
