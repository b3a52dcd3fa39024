#pragma once

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/problem/shape.hpp"
#include "src/walk/list_walk.hpp"
#include "src/walk/sequence.hpp"
#include "src/walk/walk.hpp"

// Views of attention's tensors: rows of one sequence and head, for any layout.
namespace tessera::cpu {

/// Whether a tensor is absent or has no elements (its other sizes do not matter then).
inline bool is_empty(const Tensor& tensor) {
  for (int i = 0; i < tensor.rank; ++i)
    if (tensor.size(i) == 0) return true;
  return !tensor;
}

/// Factors of the rows of a head; without data they are 1.
struct RowFactors {
  const float* data = nullptr;
  std::int64_t rows = INT64_MAX;  // that share one
  std::int64_t stride = 0;        // to the next one
  std::int64_t first = 0;         // the row, among all, of row 0

  float of(std::int64_t row) const { return data ? data[(first + row) / rows * stride] : 1.0f; }
  /// Rows from `row` on that share its factor.
  std::int64_t left(std::int64_t row) const { return rows - (first + row) % rows; }
};

/// Rows of one sequence and head of q, out, k, v or a gradient; strides in elements.
struct RowsView {
  char* data = nullptr;
  DType dtype = DType::none;
  std::int64_t row = 0, col = 0;
  RowFactors factors{};

  void* at(std::int64_t index) const { return data + index * row * size_of(dtype); }
};

/// Keys or values: contiguous rows, or rows in pages.
struct KeyRowsView {
  RowsView rows;
  bool paged = false;
  planning::PageView pages;
  std::int64_t batch = 0, page_stride = 0;
  std::int64_t scale_stride = 0;  // of the factors, between pages

  /// Consecutive rows from `key` on, and their factor; `data` is null if no page holds them.
  struct Run {
    const void* data;
    std::int64_t count;
    float scale = 1;
  };
  Run run(std::int64_t key, std::int64_t end) const;
};

using planning::Sequence;

class AttentionView {
 public:
  AttentionView(const AttentionProblem& problem, const planning::AttentionShape& shape)
      : problem_(problem), shape_(shape), sequences_(planning::sequences_of(problem, shape)) {}

  Sequence sequence(std::int64_t batch) const { return sequences_.at(batch); }
  /// Rows of a tensor shaped like q, out or their gradients, with q_scale.
  RowsView queries(const Tensor& tensor, const Sequence& sequence, std::int64_t head,
                   const Tensor& scale = {}) const;
  /// Rows of a tensor shaped like k, v or their gradients, with k_scale or v_scale.
  KeyRowsView keys(const Tensor& tensor, const Sequence& sequence, std::int64_t kv_head,
                   const Tensor& scale = {}) const;
  /// lse or dlse of the queries of a sequence and head; `stride` is in elements.
  struct PerQuery {
    float* data = nullptr;
    std::int64_t stride = 0;
    float& operator[](std::int64_t i) const { return data[i * stride]; }
  };
  PerQuery per_query(const Tensor& tensor, const Sequence& sequence, std::int64_t head) const;
  float sink(std::int64_t head) const;

  /// Zeroes the packed rows [total, heads, dim] that belong to no sequence: those after the last
  /// offset. Does nothing if the tensor or the offsets are absent.
  void clear_rest(const Tensor& rows, const Tensor& offsets) const;
  /// Writes -inf to the log-sum-exps [heads, total] of these rows.
  void clear_rest_of_lse() const;

 private:
  /// The first row after the last sequence.
  std::int64_t end_of(const Tensor& offsets) const;

  const AttentionProblem& problem_;
  const planning::AttentionShape& shape_;
  planning::SequenceView sequences_;
};

}  // namespace tessera::cpu
