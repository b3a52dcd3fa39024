#pragma once

#include "src/plan/tile_table.hpp"

namespace tessera::planning {

// CPU rows. `tile` is what one thread works on at a time; register tiles inside it follow from the
// vector width and live with the kernels.
inline constexpr KernelRow kCpuRows[] = {
    {.name = "cpu_product",
     .backend = Backend::cpu,
     .ops = ops({Op::matmul, Op::sddmm, Op::spgemm}),
     .tile = {.m = 64, .n = 384, .k = 512},
     .why = "the right operand packed once into panels; a 64 x 512 piece of the left stays in L2",
     .measured = ""},
    {.name = "cpu_attention",
     .backend = Backend::cpu,
     .ops = ops({Op::attention, Op::attention_backward}),
     .tile = {.m = 128, .n = 128},
     .why = "scores of a 128 x 128 tile stay in L2; a packed key tile serves 128 rows",
     .measured = ""},
    {.name = "cpu_merge",
     .backend = Backend::cpu,
     .ops = ops({Op::merge_states}),
     .tile = {.m = 1},
     .why = "one pass over the partial results",
     .measured = ""},
};

}  // namespace tessera::planning
