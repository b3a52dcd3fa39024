#pragma once

#include "src/select/tile_table.hpp"

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
     .measured = "1.01-1.04 of cuBLAS at 8192^3 bf16, at density .25 .93 (blocks of 128) and .74 "
                 "(64): H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_128x128",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 5, .warpgroups = 2},
     .why = "few tiles, or few columns: more blocks of threads share the work",
     .measured =
         "0.78-0.80 of cuBLASLt at 128 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_128x64",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 128, .n = 64, .k = 64, .stages = 6, .warpgroups = 2},
     .why = "groups of 64 rows, and short sides that have to be copied first",
     .measured =
         "0.87-0.89 of cuBLASLt at 64 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_128x32",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 128, .n = 32, .k = 64, .stages = 8, .warpgroups = 2},
     .why = "groups of 32 rows, and short sides that have to be copied first",
     .measured =
         "0.89-0.90 of cuBLASLt at 32 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_matmul_128x16",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 128, .n = 16, .k = 64, .stages = 8, .warpgroups = 2},
     .why = "groups of up to 16 rows, and short sides that have to be copied first",
     .measured =
         "0.87-0.92 of cuBLASLt at 1 to 16 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_skinny_256x16",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 256, .n = 16, .k = 64, .stages = 24, .warpgroups = 4},
     .why = "up to 16 columns: the other side streams through, read once",
     .measured =
         "1.00 of cuBLASLt at 16 rows, 8192 x 8192 weights; 4.3x faster than dense cuBLASLt with W "
         "14336 x 4096, block 64, density .2, 16 tokens: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_skinny_256x32",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 256, .n = 32, .k = 64, .stages = 24, .warpgroups = 4},
     .why = "32 columns: the other side streams through, read once",
     .measured = "1.01 of cuBLASLt at 32 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_skinny_256x64",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 256, .n = 64, .k = 64, .stages = 24, .warpgroups = 4},
     .why = "64 columns: the other side streams through, read once",
     .measured =
         "0.94-0.98 of cuBLASLt at 64 rows, 8192 x 8192 weights: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_skinny_256x128",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 256, .n = 128, .k = 64, .stages = 24, .warpgroups = 4},
     .why = "128 columns: the other side streams through, read once",
     .measured =
         "0.94-0.97 of cuBLASLt at 128 rows, 8192 x 8192 weights; 2.9x faster than dense cuBLASLt "
         "with W 14336 x 4096, block 64, density .2, 128 tokens: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_bsr_384x128",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 384, .n = 128, .k = 64, .stages = 5, .warpgroups = 2},
     .why = "lines of blocks share what they read of the dense matrix; blocks from 16 x 16 on",
     .measured = "0.67 of cuBLAS at block 64, 0.32 at 32, 0.18 at 16, 8192^3 bf16, density .25: "
                 "H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_bsr_64x64",
     .backend = Backend::sm90,
     .ops = ops({Op::matmul}),
     .tile = {.m = 64, .n = 64, .k = 64, .stages = 4, .warpgroups = 1},
     .why = "few columns: stored blocks stream through, read once",
     .measured = "2.2x faster than cuBLAS dense: 16 tokens, W 14336 x 4096, block 64, density "
                 ".2: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_sddmm_128x256",
     .backend = Backend::sm90,
     .ops = ops({Op::sddmm}),
     .tile = {.m = 128, .n = 256, .k = 64, .stages = 4, .warpgroups = 2},
     .why = "blocks of 128 rows: each warpgroup takes 64 of them by 256 gathered columns",
     .measured = "0.91 of cuBLAS at 8192^3 bf16, density .25: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_sddmm_64x512",
     .backend = Backend::sm90,
     .ops = ops({Op::sddmm}),
     .tile = {.m = 64, .n = 512, .k = 64, .stages = 3, .warpgroups = 2},
     .why = "blocks of 64 rows: each warpgroup takes 256 gathered columns",
     .measured = "0.75 of cuBLAS at 8192^3 bf16, density .25: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_sddmm_32x512",
     .backend = Backend::sm90,
     .ops = ops({Op::sddmm}),
     .tile = {.m = 32, .n = 512, .k = 64, .stages = 3, .warpgroups = 2},
     .why = "blocks of 32 rows: gathered columns take the side that is 64 at least",
     .measured = "0.37 of cuBLAS at 8192^3 bf16, density .25: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_sddmm_16x512",
     .backend = Backend::sm90,
     .ops = ops({Op::sddmm}),
     .tile = {.m = 16, .n = 512, .k = 64, .stages = 3, .warpgroups = 2},
     .why = "blocks of 16 rows: gathered columns take the side that is 64 at least",
     .measured = "0.14 of cuBLAS at 8192^3 bf16, density .25: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_spgemm_128x128",
     .backend = Backend::sm90,
     .ops = ops({Op::spgemm}),
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 2, .warpgroups = 2},
     .why = "blocks of 128: each warpgroup takes 64 rows of one of the result",
     .measured = "0.37 of cuBLAS at 8192^3 bf16, .1 x .1, on pairs: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_spgemm_64x64",
     .backend = Backend::sm90,
     .ops = ops({Op::spgemm}),
     .tile = {.m = 64, .n = 64, .k = 64, .stages = 3, .warpgroups = 2},
     .why = "blocks of 64: four of the result at a time share the blocks of a",
     .measured = "0.24 of cuBLAS at 8192^3 bf16, .1 x .1, on pairs: H200, CUDA 13.0, 2026-11-21"},
    {.name = "sm90_attention_64",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 192, .n = 128, .k = 64, .stages = 3, .warpgroups = 3, .v = 64},
     .why = "heads of up to 64: a third warpgroup fills what two leave of the exponentials",
     .measured = "555 TFLOPS at S 16384, bf16; fa4 517, cuDNN 448 in one run: H200, CUDA 13.0, "
                 "2026-11-23"},
    {.name = "sm90_attention_64x128",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 128, .n = 128, .k = 64, .stages = 5, .warpgroups = 2, .v = 64},
     .why = "softcap, and scales of zero or less, with heads of 64: two warpgroups have registers "
            "for that",
     .measured = "lists of 128 x 128, density .125: 486 TFLOPS at S 32768, bf16, where 64_teams "
                 "gives 499; bursts in one run: H200, CUDA 13.0, 2026-11-22"},
    {.name = "sm90_attention_64x64",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 256, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64},
     .why = "short walks with heads of 64: four warpgroups hide what each waits for",
     .measured = "456 TFLOPS at S 1024, bf16, causal 356; cuDNN 398 and 305 in one run: H200, CUDA "
                 "13.0, 2026-11-23"},
    {.name = "sm90_attention_64_teams",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 128, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64, .kv_splits = 2},
     .why = "one tile a multiprocessor, or lists of 128 rows, with heads of 64: two teams share "
            "what two warpgroups would wait for",
     .measured = "B1 H8 S 2048 by graph replay: 23.5 us; cuDNN 23.8, fa4 26.5; lists of 128 x 128, "
                 "density .125: 476 TFLOPS at S 32768; fa4 433; each in one run: H200, CUDA 13.0, "
                 "2026-11-23"},
    {.name = "sm90_attention_64_few",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 64, .n = 128, .k = 64, .stages = 4, .warpgroups = 2, .v = 64, .kv_splits = 2},
     .why = "few queries with heads of 64: twice as many tiles, whose keys two warpgroups divide",
     .measured =
         "B1 H8 S 512 by graph replay: 6.4 us; cuDNN 10.0; lists of 64 x 64, density "
         ".125: 413 TFLOPS at S 32768; fa4 294; each in one run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_64_lines64",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 256, .n = 64, .k = 64, .stages = 6, .warpgroups = 4, .v = 64, .row_groups = 4},
     .why = "lists of 64 rows with heads of 64",
     .measured =
         "BigBird, B16 H12 S 4096: 283 TFLOPS, bf16; flex 271, fa4 207 in one run: H200, CUDA "
         "13.0, 2026-11-22"},
    {.name = "sm90_attention_96",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 128, .n = 128, .k = 96, .stages = 3, .warpgroups = 2, .v = 96},
     .why = "heads of up to 96: lists, softcap, short walks",
     .measured =
         "495 TFLOPS at S 1024, bf16; lists of 128 x 128, density .5: 530 at S 4096: H200, CUDA "
         "13.0, 2026-11-22"},
    {.name = "sm90_attention_96_tall",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 192, .n = 64, .k = 96, .stages = 4, .warpgroups = 3, .v = 96},
     .why = "long walks with heads of up to 96: a third warpgroup fills what two wait for",
     .measured =
         "597 TFLOPS at S 16384, bf16, causal 585; fa4 598 and 571, cuDNN 464 and 420 in one "
         "run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_128",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 128, .n = 128, .k = 128, .stages = 2, .warpgroups = 2, .v = 128},
     .why = "heads of up to 128: each warpgroup takes 64 queries",
     .measured = "lists of 128 x 128, bf16, S 32768, density .5, .25 and .125: 674, 664 and 639 "
                 "TFLOPS; fa4 "
                 "623, 612 and 591 in one run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_128x64",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 128, .n = 64, .k = 128, .stages = 4, .warpgroups = 2, .v = 128},
     .why =
         "short walks under a causal mask or a window: steps of 64 keys, which consumers join and "
         "leave each for itself",
     .measured =
         "198 TFLOPS at S 256, causal, bf16, 336 at S 640; 128_tall 180 and 328, 128 177 and 322 "
         "in one run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_128_tall",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 192, .n = 64, .k = 128, .stages = 3, .warpgroups = 3, .v = 128},
     .why = "long walks with heads of up to 128: more rows share what L2 brings",
     .measured =
         "692 TFLOPS at S 16384, bf16, causal 672; fa4 659 and 610, cuDNN 604 and 549 in one "
         "run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_128_window",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 192, .n = 64, .k = 128, .stages = 4, .warpgroups = 3, .v = 128},
     .why =
         "windows over long sequences with heads of up to 128: a stage more lets warpgroups join "
         "a tile late",
     .measured = "521 TFLOPS at S 16384, causal, a window of 1024, bf16; fa4 451 in one run: H200, "
                 "CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_128_lines64",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile =
         {.m = 128, .n = 128, .k = 128, .stages = 2, .warpgroups = 2, .v = 128, .row_groups = 2},
     .why = "lists of 64 rows with heads of up to 128: steps of keys that the same lists name",
     .measured = "lists of 64 x 64, density .125, S 32768, bf16: 482 TFLOPS, 618 where four rows "
                 "are alike; fa4 413 and 422 in one run: H200, CUDA 13.0, 2026-11-25"},
    {.name = "sm90_attention_128_few",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 64, .n = 64, .k = 128, .stages = 4, .warpgroups = 2, .v = 128, .kv_splits = 2},
     .why = "few queries with heads of up to 128: twice as many tiles, whose keys two warpgroups "
            "divide",
     .measured = "lists of 64 x 64, density .125: 478 TFLOPS at S 32768, bf16, where 128_lines64 "
                 "gave 450 before it took steps of 128 keys: H200, CUDA 13.0, 2026-11-22"},
    {.name = "sm90_attention_192x128",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 128, .n = 128, .k = 192, .stages = 2, .warpgroups = 2, .v = 128},
     .why = "heads of up to 192 whose values have up to 128",
     .measured = "714 TFLOPS at S 16384, bf16; fa4 674 in one run: H200, CUDA 13.0, 2026-11-23"},
    {.name = "sm90_attention_256",
     .backend = Backend::sm90,
     .ops = ops({Op::attention}),
     .tile = {.m = 128, .n = 64, .k = 256, .stages = 2, .warpgroups = 2, .v = 256},
     .why = "heads of up to 256: shorter steps, as sums take half of the registers",
     .measured = "720 TFLOPS at S 16384, bf16; fa4 714 in one run: H200, CUDA 13.0, 2026-11-23"},
};

}  // namespace tessera::planning
