#pragma once

#include "src/core/check.hpp"
#include "src/kernels/row.hpp"

namespace tessera::planning {

// Attention with few queries per sequence, or over pages, on Hopper. Times are estimates: the
// arithmetic of one piece by all of a CTA's warps, where memory is no limit.
inline constexpr unsigned kDecodeDtypes = core::dtypes({DType::f16, DType::bf16, DType::e4m3});
inline constexpr unsigned kDecodeNarrowKeys = core::dtypes({DType::e4m3});  // in twice the stages
inline constexpr KernelRow kSm90DecodeRows[] = {
    {.name = "sm90_decode_d64_q16_k64_s8_split4",
     .tile = {.m = 16, .n = 64, .k = 64, .stages = 8, .warpgroups = 1, .v = 64, .kv_splits = 4},
     .dtypes = kDecodeDtypes,
     .narrow_keys = kDecodeNarrowKeys,
     .times = {.step_ns = 150, .tile_ns = 2000},
     .why = "up to 16 rows of queries and heads of up to 64: bytes are the limit",
     .measured = ""},
    {.name = "sm90_decode_d64_q64_k64_s8_split2",
     .tile = {.m = 64, .n = 64, .k = 64, .stages = 8, .warpgroups = 2, .v = 64, .kv_splits = 2},
     .dtypes = kDecodeDtypes,
     .narrow_keys = kDecodeNarrowKeys,
     .times = {.step_ns = 600, .tile_ns = 3000},
     .why = "17 to 64 rows of queries and heads of up to 64: they share a load of the keys",
     .measured = ""},
    {.name = "sm90_decode_d128_q16_k64_s4_split4",
     .tile = {.m = 16, .n = 64, .k = 128, .stages = 4, .warpgroups = 1, .v = 128, .kv_splits = 4},
     .dtypes = kDecodeDtypes,
     .narrow_keys = kDecodeNarrowKeys,
     .times = {.step_ns = 250, .tile_ns = 2000},
     .why = "up to 16 rows of queries and heads of up to 128: bytes are the limit",
     .measured = ""},
    {.name = "sm90_decode_d128_q64_k64_s4_split2",
     .tile = {.m = 64, .n = 64, .k = 128, .stages = 4, .warpgroups = 2, .v = 128, .kv_splits = 2},
     .dtypes = kDecodeDtypes,
     .narrow_keys = kDecodeNarrowKeys,
     .times = {.step_ns = 1000, .tile_ns = 3000},
     .why = "17 to 64 rows of queries and heads of up to 128: they share a load of the keys",
     .measured = ""},
    {.name = "sm90_decode_d256_q16_k64_s2_split2",
     .tile = {.m = 16, .n = 64, .k = 256, .stages = 2, .warpgroups = 1, .v = 256, .kv_splits = 2},
     .dtypes = kDecodeDtypes,
     .narrow_keys = kDecodeNarrowKeys,
     .times = {.step_ns = 900, .tile_ns = 2500},
     .why = "up to 16 rows of queries and heads of up to 256: bytes are the limit",
     .measured = ""},
    {.name = "sm90_decode_d256_q32_k64_s2_split2",
     .tile = {.m = 32, .n = 64, .k = 256, .stages = 2, .warpgroups = 1, .v = 256, .kv_splits = 2},
     .dtypes = kDecodeDtypes,
     .narrow_keys = kDecodeNarrowKeys,
     .times = {.step_ns = 1200, .tile_ns = 3000},
     .why = "17 to 32 rows of queries and heads of up to 256: they share a load of the keys",
     .measured = ""},
};

}  // namespace tessera::planning
