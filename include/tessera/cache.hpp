#pragma once

#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/quantize.hpp>
#include <tessera/tensor.hpp>

/// Keys and values of attention as caches hold them, in pages and maybe in e4m3. Calls run on the
/// device of their tensors, do not wait for a GPU, need no workspace and can be captured in a
/// graph.
namespace tessera {

/// New keys and values behind those that a paged cache holds.
struct PagedAppend {
  /// [batch, length, kv_heads, dim] and [.., dim_v], or packed [total, kv_heads, ..] with
  /// `offsets`; f32, f16 or bf16.
  Tensor k{}, v{};
  Tensor offsets{};             ///< optional, i32 or i64 [batch + 1]
  Tensor k_cache{}, v_cache{};  ///< written: [pages, page, kv_heads, dim] and [.., dim_v]
  Tensor page_table{};          ///< i32 [batch, max_pages], as in `AttentionProblem`
  Tensor lengths{};             ///< i32 or i64 [batch]: keys that each sequence has before the call
  /// Optional, beside caches in e4m3: what stored values are multiplied by when they are read, f32
  /// [1], [kv_heads] or [pages, kv_heads]. Default 1.
  Tensor k_scale{}, v_scale{};
};

/// Writes key i of sequence b to position lengths[b] + i, and converts it to the dtype of the
/// cache: f32, f16, bf16, or e4m3 after a division by its factor. `lengths` stays as it is.
/// Positions beyond the page table and pages out of range are refused in host memory before
/// anything is written; on a GPU they are skipped.
TESSERA_EXPORT void append(const PagedAppend& problem, const Execution& execution = {});

}  // namespace tessera
