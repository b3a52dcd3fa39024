#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Attention on Hopper, compiled for sm_90a only. `times`: fitted to each row's time on 304 random
// shapes (H200, CUDA 13.0, 2026-11-26, graph replays). Of FP8, to dense problems of S 1024 to 16384
// (2026-11-27); of rows with `measured` "" estimated from the others.
inline constexpr unsigned kAttentionDtypes = core::dtypes({DType::f16, DType::bf16});
inline constexpr unsigned kFp8AttentionDtypes = core::dtypes({DType::e4m3});
inline constexpr KernelRow kSm90AttentionRows[] = {
    {.name = "sm90_attention_d64_q192_k128_s3",
     .tile = {.m = 192, .n = 128, .k = 64, .stages = 3, .warpgroups = 3, .v = 64},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1180, .tile_ns = 4300},
     .why = "heads of up to 64: a third warpgroup uses exp throughput that two leave idle",
     .measured = "535 TFLOPS at S 16384, bf16, causal 539; fa4 517 and 506, fa3 496 and 501 in one "
                 "run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d64_q128_k128_s5",
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 5, .warpgroups = 2, .v = 64},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1140, .tile_ns = 3100},
     .why = "softcap, and scales of zero or less, with heads of 64: two warpgroups leave registers "
            "for the score transform",
     .measured = "softcap 30, causal, S 16384, bf16: 364 TFLOPS, .66 of the same without softcap: "
                 "H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d64_q256_k64_s6",
     .tile = {.m = 256, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 870, .tile_ns = 3700},
     .why = "short walks with heads of 64: four warpgroups hide each other's latency",
     .measured = "444 TFLOPS at S 1024, bf16, causal 350; cuDNN 391 and 302 in one run: H100, CUDA "
                 "13.0, 2026-11-25"},
    {.name = "sm90_attention_d64_q128_k64_s6_split2",
     .tile = {.m = 128, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64, .kv_splits = 2},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1000, .tile_ns = 2500},
     .why =
         "one tile per SM, or lists of 128 rows, with heads of 64: two pairs of warpgroups split "
         "the keys to hide latency",
     .measured =
         "B1 H8 S 2048 by graph replay: 23.1 us; cuDNN 23.9, fa4 26.1; lists of 128 x 128, density "
         ".125: 466 TFLOPS at S 32768; fa4 429; each in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d64_q64_k128_s4_split2",
     .tile = {.m = 64, .n = 128, .k = 64, .stages = 4, .warpgroups = 2, .v = 64, .kv_splits = 2},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1000, .tile_ns = 3500},
     .why = "few queries with heads of 64: twice as many tiles, whose keys two warpgroups split",
     .measured = "B1 H8 S 512 by graph replay: 6.4 us; fa4 9.7; lists of 64 x 64, density .125: "
                 "417 TFLOPS at S 32768; fa4 299; each in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d64_q256_k64_s6_lists4",
     .tile = {.m = 256, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64, .row_groups = 4},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 830, .tile_ns = 5700},
     .why = "lists of 64 rows with heads of 64",
     .measured = "BigBird, B16 H12 S 4096: 295 TFLOPS, bf16; flex 260, fa4 209 in one run: H100, "
                 "CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d80_q192_k64_s4",
     .tile = {.m = 192, .n = 64, .k = 80, .stages = 4, .warpgroups = 3, .v = 80},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 790, .tile_ns = 3000},
     .why = "long walks with heads of up to 80: MMAs leave out a sixth of d96_q192_k64_s4's",
     .measured = "B9 H8 S 4111, bf16: 693 us; fa3 703 in one run: H200, CUDA 13.0, 2026-11-26"},
    {.name = "sm90_attention_d80_q128_k128_s3",
     .tile = {.m = 128, .n = 128, .k = 80, .stages = 3, .warpgroups = 2, .v = 80},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1060, .tile_ns = 3400},
     .why = "lists, softcap and short walks with heads of up to 80",
     .measured = "B4 H10:2 S 394, bf16: 14.8 us; fa3 13.7 in one run: H200, CUDA 13.0, 2026-11-26"},
    {.name = "sm90_attention_d96_q128_k128_s3",
     .tile = {.m = 128, .n = 128, .k = 96, .stages = 3, .warpgroups = 2, .v = 96},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1090, .tile_ns = 3500},
     .why = "lists, softcap and short walks with heads of up to 96",
     .measured = "lists of 128 x 128, density .5, B4 S 4096, bf16: 537 TFLOPS, .91 of the dense "
                 "rate: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d96_q192_k64_s4",
     .tile = {.m = 192, .n = 64, .k = 96, .stages = 4, .warpgroups = 3, .v = 96},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 820, .tile_ns = 3100},
     .why = "long walks with heads of up to 96: a third warpgroup hides latency of the other two",
     .measured = "586 TFLOPS at S 16384, bf16, causal 587; fa4 597 and 576, fa3 581 and 577 in one "
                 "run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d128_q128_k128_s2",
     .tile = {.m = 128, .n = 128, .k = 128, .stages = 2, .warpgroups = 2, .v = 128},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1270, .tile_ns = 4200},
     .why = "heads of up to 128: 64 queries per warpgroup",
     .measured = "lists of 128 x 128, bf16, S 32768, density .5, .25 and .125: 691, 668 and 645 "
                 "TFLOPS; fa4 642, 617 and 577 in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d128_q128_k64_s4",
     .tile = {.m = 128, .n = 64, .k = 128, .stages = 4, .warpgroups = 2, .v = 128},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 680, .tile_ns = 3500},
     .why =
         "short walks under a causal mask or a window: in steps of 64 keys, a consumer skips more "
         "of those that its rows do not see",
     .measured =
         "causal, bf16: B64 S 256 103.7 us, B24 S 640 116.4 us; d128_q192_k64_s3 108.2 and 122.5, "
         "d128_q128_k128_s2 111.0 and 118.9 in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d128_q192_k64_s3",
     .tile = {.m = 192, .n = 64, .k = 128, .stages = 3, .warpgroups = 3, .v = 128},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 940, .tile_ns = 3400},
     .why = "long walks with heads of up to 128: more rows share the loads from L2",
     .measured = "696 TFLOPS at S 16384, bf16, causal 683; fa3 671 and 653, fa4 662 and 628 in one "
                 "run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d128_q192_k64_s4",
     .tile = {.m = 192, .n = 64, .k = 128, .stages = 4, .warpgroups = 3, .v = 128},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 950, .tile_ns = 3500},
     .why = "windows over long sequences with heads of up to 128: one more stage lets a warpgroup "
            "join a tile late",
     .measured = "524 TFLOPS at S 16384, causal, a window of 1024, bf16; fa4 447 in one run: H100, "
                 "CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d128_q128_k128_s2_lists2",
     .tile =
         {.m = 128, .n = 128, .k = 128, .stages = 2, .warpgroups = 2, .v = 128, .row_groups = 2},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1440, .tile_ns = 5400},
     .why = "lists of 64 rows with heads of up to 128: all keys of a step are in the same lists",
     .measured =
         "lists of 64 x 64, density .125, S 32768, bf16: 466 TFLOPS, 621 where four rows "
         "of blocks have the same list; fa4 408 and 424 in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d128_q64_k64_s4_split2",
     .tile = {.m = 64, .n = 64, .k = 128, .stages = 4, .warpgroups = 2, .v = 128, .kv_splits = 2},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1100, .tile_ns = 2600},
     .why = "few queries with heads of up to 128: twice as many tiles, whose keys two warpgroups "
            "split",
     .measured =
         "B1 H8 S 512 by graph replay: 8.3 us; cuDNN 12.6 in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d192_v128_q128_k128_s2",
     .tile = {.m = 128, .n = 128, .k = 192, .stages = 2, .warpgroups = 2, .v = 128},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1640, .tile_ns = 3500},
     .why = "heads of up to 192 with values of up to 128",
     .measured =
         "707 TFLOPS at S 16384, bf16; fa3 696, fa4 689 in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_d192_q128_k64_s3",
     .tile = {.m = 128, .n = 64, .k = 192, .stages = 3, .warpgroups = 2, .v = 192},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 950, .tile_ns = 3900},
     .why = "heads of up to 192 with values of up to 192",
     .measured = "B4 H64:16 S 961, bf16: 615 TFLOPS; fa3 629 in one run: H100, CUDA 13.0, "
                 "2026-11-25"},
    {.name = "sm90_attention_d256_q128_k64_s2",
     .tile = {.m = 128, .n = 64, .k = 256, .stages = 2, .warpgroups = 2, .v = 256},
     .dtypes = kAttentionDtypes,
     .times = {.step_ns = 1390, .tile_ns = 4000},
     .why = "heads of up to 256: shorter steps, as the O accumulator fills half of the registers",
     .measured =
         "730 TFLOPS at S 16384, bf16; fa3 712, fa4 699 in one run: H100, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_fp8_d64_q192_k128_s4",
     .tile = {.m = 192, .n = 128, .k = 64, .stages = 4, .warpgroups = 3, .v = 64},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1200, .tile_ns = 4600},
     .why = "FP8, heads of up to 64",
     .measured = "659 TFLOPS at S 16384, H32, causal 644: H200, CUDA 13.0, 2026-11-29"},
    {.name = "sm90_attention_fp8_d96_q192_k128_s3",
     .tile = {.m = 192, .n = 128, .k = 96, .stages = 3, .warpgroups = 3, .v = 96},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1460, .tile_ns = 4900},
     .why = "FP8, heads of up to 96",
     .measured = "808 TFLOPS at S 16384, H16, causal 768: H200, CUDA 13.0, 2026-11-27"},
    {.name = "sm90_attention_fp8_d128_q192_k128_s4",
     .tile = {.m = 192, .n = 128, .k = 128, .stages = 4, .warpgroups = 3, .v = 128},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1710, .tile_ns = 5100},
     .why = "FP8, heads of up to 128: three warpgroups hide each other",
     .measured = "925 TFLOPS at S 16384, H16, causal 907; S 4096 857 and 777, S 1024 685 and 483: "
                 "H200, CUDA 13.0, 2026-11-29"},
    {.name = "sm90_attention_fp8_d192_v128_q192_k128_s3",
     .tile = {.m = 192, .n = 128, .k = 192, .stages = 3, .warpgroups = 3, .v = 128},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 2020, .tile_ns = 5200},
     .why = "FP8, heads of up to 192 with values of up to 128",
     .measured = "1028 TFLOPS at S 16384, H16, causal 1010: H200, CUDA 13.0, 2026-11-27"},
    {.name = "sm90_attention_fp8_d64_q192_k128_s4_lists3",
     .tile = {.m = 192, .n = 128, .k = 64, .stages = 4, .warpgroups = 3, .v = 64, .row_groups = 3},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1230, .tile_ns = 6000},
     .why = "FP8, lists of 64 rows with heads of up to 64",
     .measured = ""},
    {.name = "sm90_attention_fp8_d128_q192_k128_s4_lists3",
     .tile =
         {.m = 192, .n = 128, .k = 128, .stages = 4, .warpgroups = 3, .v = 128, .row_groups = 3},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1520, .tile_ns = 6000},
     .why = "FP8, lists of 64 rows with heads of up to 128: three warpgroups hide each other",
     .measured = "597 TFLOPS of listed blocks of 64 x 64, density .125, S 32768, H16: H200, CUDA "
                 "13.0, 2026-11-28"},
    {.name = "sm90_attention_fp8_d128_q128_k128_s4_lists2",
     .tile =
         {.m = 128, .n = 128, .k = 128, .stages = 4, .warpgroups = 2, .v = 128, .row_groups = 2},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1460, .tile_ns = 6000},
     .why = "FP8, lists of 64 rows with heads of up to 128",
     .measured = ""},
    {.name = "sm90_attention_fp8_d256_q128_k128_s2_lists2",
     .tile =
         {.m = 128, .n = 128, .k = 256, .stages = 2, .warpgroups = 2, .v = 256, .row_groups = 2},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 2060, .tile_ns = 7000},
     .why = "FP8, lists of 64 rows with heads of up to 256",
     .measured = ""},
    {.name = "sm90_attention_fp8_d64_q128_k128_s5",
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 5, .warpgroups = 2, .v = 64},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1160, .tile_ns = 4400},
     .why = "FP8, heads of up to 64: softcap, several factors per head",
     .measured = ""},
    {.name = "sm90_attention_fp8_d128_q128_k128_s4",
     .tile = {.m = 128, .n = 128, .k = 128, .stages = 4, .warpgroups = 2, .v = 128},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1200, .tile_ns = 6500},
     .why = "FP8, heads of up to 128: lists of 128 rows, softcap, several factors per head",
     .measured = "798 TFLOPS of listed blocks of 128 x 128, density .125, S 32768, H16: H200, CUDA "
                 "13.0, 2026-11-29"},
    {.name = "sm90_attention_fp8_d192_v128_q128_k128_s3",
     .tile = {.m = 128, .n = 128, .k = 192, .stages = 3, .warpgroups = 2, .v = 128},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1610, .tile_ns = 4800},
     .why = "FP8, heads of up to 192 with values of up to 128: softcap, several factors per head",
     .measured = ""},
    {.name = "sm90_attention_fp8_d192_q128_k128_s3",
     .tile = {.m = 128, .n = 128, .k = 192, .stages = 3, .warpgroups = 2, .v = 192},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 1760, .tile_ns = 5000},
     .why = "FP8, heads of up to 192 with values of up to 192",
     .measured = "878 TFLOPS at S 16384, H16, causal 867: H200, CUDA 13.0, 2026-11-27"},
    {.name = "sm90_attention_fp8_d256_q128_k128_s2",
     .tile = {.m = 128, .n = 128, .k = 256, .stages = 2, .warpgroups = 2, .v = 256},
     .dtypes = kFp8AttentionDtypes,
     .times = {.step_ns = 2060, .tile_ns = 5700},
     .why = "FP8, heads of up to 256: the O accumulator fills half of the registers",
     .measured = "1033 TFLOPS at S 16384, H16, causal 997: H200, CUDA 13.0, 2026-11-29"},
};

}  // namespace tessera::planning
