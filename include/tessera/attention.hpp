#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <tessera/block_mask.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// Attention, for every batch and head: out = softmax(scale * q k^T + mask) v.
///
/// Shapes, with any strides and `heads` a multiple of `kv_heads`:
///
/// - dense: q [batch, q_length, heads, dim], k [batch, kv_length, kv_heads, dim], v [batch,
///   kv_length, kv_heads, dim_v], out [batch, q_length, heads, dim_v];
/// - packed: q and out [total_q, heads, ...] with `q_offsets`; k and v [total_kv, kv_heads, ...]
///   with `kv_offsets`;
/// - paged: k and v [pages, page, kv_heads, ...] with `page_table` and `kv_end`.
///
/// q, k and v have one dtype, or k and v are e4m3 beside a wider q. Stored queries, keys and values
/// in e4m3 are multiplied by `q_scale`, `k_scale` and `v_scale`, as `quantize` writes them. Results
/// are f32, f16 or bf16.
///
/// Query i of a sequence is at position q_position + i, and key j at kv_position + j. Let d be the
/// key's position minus the query's. Query i sees key j if all of these hold: kv_begin <= j <
/// kv_end; the block mask, if there is one, contains the pair; d <= 0 if causal; -window_left <= d
/// <= window_right. For a query that sees no key, out is 0 and lse is -inf (the sink, if any).
///
/// Packed sequences start at offset 0 and may end before the total length. In the rows after the
/// last sequence, out is 0 and lse is -inf, with or without sinks, and gradients are 0. Offsets in
/// GPU memory are not checked; if the first offset is above 0, the rows before it are treated like
/// those after the last sequence.
struct AttentionProblem {
  Tensor q{}, k{}, v{}, out{};  ///< out may not overlap an input, q included
  /// Optional output, f32 [batch, heads, q_length] or [heads, total_q]: the natural logarithm of
  /// the sum of exponentials (log-sum-exp), sinks included.
  Tensor lse{};

  /// Optional, f32, beside k and v in e4m3: [1], [kv_heads], or [pages, kv_heads] (dense keys:
  /// [batch, kv_heads]); or with a last dimension more, a factor for each n = 64 or 128 rows of a
  /// page, of a sequence, or of all packed rows: [.., kv_heads, ceil(length / n)]. Default 1.
  Tensor k_scale{}, v_scale{};
  Tensor q_scale{};  ///< the same beside q in e4m3, for `heads`

  std::optional<float> scale{};  ///< default: 1/sqrt(dim)
  float softcap = 0.0f;  ///< scaled scores s become softcap * tanh(s / softcap); 0: no softcap
  bool causal = false;
  std::optional<std::int64_t> window_left{}, window_right{};  ///< in keys; absent: no limit

  // Optional lists with one entry per sequence, i32 or i64.
  Tensor q_offsets{}, kv_offsets{};  ///< [batch + 1]: where packed sequences begin and end
  Tensor kv_begin{}, kv_end{};       ///< [batch]: valid keys; default [0, kv_length)
  /// [batch]: position of the first query; default kv_position + kv_end - q_length, which aligns
  /// the last query with the last key (bottom-right).
  Tensor q_position{};
  Tensor kv_position{};  ///< [batch]: position of the first key; default 0
  Tensor page_table{};   ///< [batch, max_pages] i32: page j holds keys [j * page, (j + 1) * page)

  /// Upper bounds of the lengths of packed sequences; max_kv_length also bounds kv_end of paged
  /// ones. 0: unknown; the total length, or the capacity of the page table, is the bound.
  std::int64_t max_q_length = 0, max_kv_length = 0;

  /// Whether a sequence's results have to have the same bits whatever else is in the batch, and
  /// however large the batch is, on one kind of device. Everything else has to be the same:
  /// parameters, `q_length` (of packed queries `max_q_length`), and which optional tensors there
  /// are. Not every kernel supports it. Gradients ignore it.
  bool batch_invariant = false;

  /// Optional block mask, with lists per head, per KV head, or for all heads. Its block rows and
  /// columns count within each sequence, so it covers max_q_length queries and max_kv_length keys.
  /// With several packed sequences, the two lengths are required.
  BlockMask mask{};
  /// Optional, float [heads]: a logit per head that is added to the softmax denominator.
  Tensor sinks{};
};

/// Backward pass of attention. `forward` is the problem of the forward pass, with its results out
/// and lse. Paged keys are not supported.
struct AttentionBackwardProblem {
  AttentionProblem forward{};
  Tensor dout{};            ///< gradient of out; shape and dtype of out
  Tensor dlse{};            ///< optional gradient of lse; shape of lse
  Tensor dq{}, dk{}, dv{};  ///< outputs, overwritten; absent gradients are not computed
  Tensor dsinks{};          ///< optional output, f32 [heads]

  /// Whether gradients have the same bits every time. If not, a GPU adds up dq in any order, which
  /// takes less time, above all for lists of blocks and for few or short sequences.
  bool deterministic = true;
};

/// Merges attention results over disjoint sets of keys: lse = log sum_i exp(lses[i]) and out =
/// sum_i outs[i] * exp(lses[i] - lse). Compute the partial results without sinks and pass the sinks
/// here.
struct MergeStatesProblem {
  std::vector<Tensor> outs{};  ///< each [batch, length, heads, dim] or [total, heads, dim]
  std::vector<Tensor> lses{};  ///< each f32 [batch, heads, length] or [heads, total]
  Tensor out{};                ///< in place: may be one of outs (same address, strides and dtype)
  Tensor lse{};                ///< optional output; in place: may be one of lses
  Tensor sinks{};              ///< optional, float [heads]
};

/// Computes attention: plans, prepares and runs. On a GPU the call returns when the work is in the
/// stream. Throws `Error` if the problem is invalid or no kernel supports it; nothing is written
/// then.
TESSERA_EXPORT void attention(const AttentionProblem& problem, const Execution& execution = {});
/// Computes the gradients that are present in the problem; otherwise like `attention`.
TESSERA_EXPORT void attention_backward(const AttentionBackwardProblem& problem,
                                       const Execution& execution = {});
/// Merges partial attention results; otherwise like `attention`.
TESSERA_EXPORT void merge_states(const MergeStatesProblem& problem,
                                 const Execution& execution = {});

}  // namespace tessera
