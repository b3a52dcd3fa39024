#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <tessera/block_mask.hpp>
#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// out = softmax(scale * q k^T, masked) v, for every batch and head.
///
/// Shapes: q [batch, q_length, heads, dim], k [batch, kv_length, kv_heads, dim], v [batch,
/// kv_length, kv_heads, dim_v], out [batch, q_length, heads, dim_v]; any strides; heads a multiple
/// of kv_heads. Packed: q and out [total_q, heads, ...] with `q_offsets`, k and v [total_kv,
/// kv_heads, ...] with `kv_offsets`. Paged: k and v [pages, page, kv_heads, ...] with `page_table`
/// and `kv_end`.
///
/// Query i of a sequence stands at position q_position + i and key j at kv_position + j. Key j is
/// seen by query i where kv_begin <= j < kv_end, the block mask (if any) holds the pair, and, with
/// d = position of the key - position of the query: d <= 0 if causal, -window_left <= d, d <=
/// window_right. A query that sees no key gives zeros and lse = -inf (or the sink).
///
/// Offsets of packed tensors begin at 0 and may end before the total length. The rows of out after
/// the last sequence are zeros with lse = -inf, sinks or not, and so are their gradients. Offsets
/// in GPU memory are not checked; rows before a first offset above 0 are treated likewise.
struct AttentionProblem {
  Tensor q{}, k{}, v{}, out{};  ///< out shares memory with none of the others, q included
  Tensor lse{};  ///< optional, f32 [batch, heads, q_length] or [heads, total_q]: natural log, sinks
                 ///< included

  std::optional<float> scale{};  ///< default 1/sqrt(dim)
  float softcap = 0.0f;          ///< s -> softcap * tanh(s / softcap) after scale; 0 is off
  bool causal = false;
  std::optional<std::int64_t> window_left{}, window_right{};  ///< absent: no limit

  /// All i32 or i64, per sequence; absent: the default in brackets.
  Tensor q_offsets{}, kv_offsets{};  ///< [batch + 1] of packed tensors
  Tensor kv_begin{}, kv_end{};       ///< [batch] used keys [0, kv_length)
  Tensor q_position{},
      kv_position{};    ///< [batch] (bottom-right: kv_position + kv_end - q_length; 0)
  Tensor page_table{};  ///< [batch, max_pages] i32: page j holds keys [j * page, (j+1) * page)

  /// The longest sequence of packed tensors, or the most keys in pages, where known (0: the total
  /// length, or what a row of pages can hold, is the bound).
  std::int64_t max_q_length = 0, max_kv_length = 0;

  /// Lists for all heads, for each, or for each head of keys. Rows and columns of blocks count
  /// within each sequence, packed and paged ones too: a mask is for max_q_length queries and
  /// max_kv_length keys, which it requires beside the offsets of more than one sequence.
  BlockMask mask{};
  Tensor sinks{};  ///< optional [heads], float: a logit that takes part in the softmax and has no
                   ///< value
};

/// Gradients of `forward`, whose out and lse are the forward pass's results.
struct AttentionBackwardProblem {
  AttentionProblem forward{};
  Tensor dout{};            ///< shape of out
  Tensor dlse{};            ///< optional, shape of lse: the gradient that reaches lse
  Tensor dq{}, dk{}, dv{};  ///< written whole; any may be absent
  Tensor dsinks{};          ///< optional f32 [heads]
};

/// Combines results of attention over disjoint sets of keys: out = sum_i outs[i] * exp(lses[i] -
/// lse), lse = log sum_i exp(lses[i]). Partial results are computed without sinks; give them here,
/// once.
struct MergeStatesProblem {
  std::vector<Tensor> outs{};  ///< each [batch, length, heads, dim] or [total, heads, dim]
  std::vector<Tensor> lses{};  ///< each f32 [batch, heads, length] or [heads, total]
  Tensor out{};                ///< may be exactly one of outs (same address, strides and dtype)
  Tensor lse{};                ///< optional; may be exactly one of lses
  Tensor sinks{};              ///< optional [heads]
};

TESSERA_EXPORT void attention(const AttentionProblem& problem, const Execution& execution = {});
TESSERA_EXPORT void attention_backward(const AttentionBackwardProblem& problem,
                                       const Execution& execution = {});
TESSERA_EXPORT void merge_states(const MergeStatesProblem& problem,
                                 const Execution& execution = {});

}  // namespace tessera
