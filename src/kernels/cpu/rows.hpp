#pragma once

#include "src/select/tile_table.hpp"

namespace tessera::planning {

// CPU rows. `tile` is what one thread works on at a time; register tiles inside it follow from the
// vector width and live with the kernels.
inline constexpr KernelRow kCpuRows[] = {
    {.name = "cpu_product",
     .backend = Backend::cpu,
     .ops = ops({Op::matmul, Op::sddmm, Op::spgemm}),
     .tile = {.m = 64, .n = 384, .k = 512},
     .why =
         "one operand packed into strips, the other read in place: 64 rows by 512 deep stay in L2",
     .measured = "248 GFLOP/s a core at f32 4096 x 4096 x 1024, AVX-512 (Zen 5), 2026-11-21"},
    {.name = "cpu_attention",
     .backend = Backend::cpu,
     .ops = ops({Op::attention, Op::attention_backward}),
     .tile = {.m = 128, .n = 192},
     .why = "128 queries in vector lanes; the scores of a strip against 192 keys stay in L1",
     .measured = "194 GFLOP/s a core at f32 4096 keys, dim 64, AVX-512 (Zen 5), 2026-11-21"},
    {.name = "cpu_merge",
     .backend = Backend::cpu,
     .ops = ops({Op::merge_states}),
     .tile = {.m = 1},
     .why = "one pass over the partial results",
     .measured = ""},
};

}  // namespace tessera::planning
