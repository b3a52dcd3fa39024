#include "src/kernels/cpu/attention_view.hpp"

#include <algorithm>
#include <limits>

#include <tessera/host_tensor.hpp>

#include "src/core/check_lists.hpp"
#include "src/problem/scale_rules.hpp"
#include "src/sparse/support.hpp"
#include "src/walk/views.hpp"

namespace tessera::cpu {

KeyRowsView::Run KeyRowsView::run(std::int64_t key, std::int64_t end) const {
  RowFactors factors = rows.factors;
  if (!paged) return {rows.at(key), std::min(end - key, factors.left(key)), factors.of(key)};
  const planning::PageView::Run run = pages.run(batch, key, end);
  if (run.page < 0) return {nullptr, run.count};
  if (factors.data) factors.data += run.page * scale_stride;
  return {rows.data + (run.page * page_stride + run.slot * rows.row) * size_of(rows.dtype),
          std::min(run.count, factors.left(run.slot)), factors.of(run.slot)};
}

namespace {

RowsView rows_of(const Tensor& t, std::int64_t batch, std::int64_t first, std::int64_t head) {
  RowsView view;
  const int rank = t.rank;
  std::int64_t offset = first * t.stride(rank - 3) + head * t.stride(rank - 2);
  if (rank == 4) offset += batch * t.stride(0);
  view.data = static_cast<char*>(t.data) + offset * size_of(t.dtype);
  view.dtype = t.dtype;
  view.row = t.stride(rank - 3);
  view.col = t.stride(rank - 1);
  return view;
}

/// The factors of a head of `of`, of its outer index 0. `first`: the row where a packed sequence
/// begins.
RowFactors factors_of(const Tensor& scale, const Tensor& of, std::int64_t first,
                      std::int64_t head) {
  RowFactors factors;
  if (!scale) return factors;
  const bool by_rows = scale.rank == of.rank - 1;
  const int head_dim = scale.rank - (by_rows ? 2 : 1);
  factors.data = static_cast<const float*>(scale.data);
  if (scale.size(head_dim) > 1) factors.data += head * scale.stride(head_dim);
  if (!by_rows) return factors;
  factors.stride = scale.stride(scale.rank - 1);
  factors.rows = planning::rows_per_scale(of.size(of.rank - 3), scale.size(scale.rank - 1));
  factors.first = first;
  return factors;
}

/// Elements from the factors of one outer index to those of the next.
std::int64_t outer_stride(const Tensor& scale, const Tensor& of) {
  return of.rank == 4 && scale && scale.rank >= 2 ? scale.stride(0) : 0;
}

}  // namespace

RowsView AttentionView::queries(const Tensor& tensor, const Sequence& sequence, std::int64_t head,
                                const Tensor& scale) const {
  RowsView view = rows_of(tensor, sequence.batch, sequence.q_begin, head);
  view.factors = factors_of(scale, tensor, sequence.q_begin, head);
  if (scale) view.factors.data += sequence.batch * outer_stride(scale, tensor);
  return view;
}

KeyRowsView AttentionView::keys(const Tensor& tensor, const Sequence& sequence,
                                std::int64_t kv_head, const Tensor& scale) const {
  KeyRowsView view;
  view.paged = shape_.kv_layout == planning::KvLayout::paged;
  view.batch = sequence.batch;
  view.rows = rows_of(tensor, view.paged ? 0 : sequence.batch, sequence.kv_begin, kv_head);
  if (view.paged) {
    view.pages = planning::page_view(problem_.page_table, tensor);
    view.page_stride = tensor.stride(0);
  }
  view.rows.factors = factors_of(scale, tensor, view.paged ? 0 : sequence.kv_begin, kv_head);
  const std::int64_t stride = outer_stride(scale, tensor);
  if (view.paged)
    view.scale_stride = stride;
  else if (scale)
    view.rows.factors.data += sequence.batch * stride;
  return view;
}

AttentionView::PerQuery AttentionView::per_query(const Tensor& tensor, const Sequence& sequence,
                                                 std::int64_t head) const {
  if (!tensor) return {};
  const int rank = tensor.rank;
  std::int64_t offset = head * tensor.stride(rank - 2) + sequence.q_begin * tensor.stride(rank - 1);
  if (rank == 3) offset += sequence.batch * tensor.stride(0);
  return {static_cast<float*>(tensor.data) + offset, tensor.stride(rank - 1)};
}

float AttentionView::sink(std::int64_t head) const {
  const Tensor& sinks = problem_.sinks;
  return load_as_float(sinks.data, sinks.dtype, head * sinks.stride(0));
}

std::int64_t AttentionView::end_of(const Tensor& offsets) const {
  return core::read_entry(offsets, 0, shape_.batch);
}

void AttentionView::clear_rest(const Tensor& rows, const Tensor& offsets) const {
  if (!rows || !offsets) return;
  const std::int64_t bytes = size_of(rows.dtype);
  for (std::int64_t row = end_of(offsets); row < rows.size(0); ++row)
    for (std::int64_t head = 0; head < rows.size(1); ++head)
      sparse::copy_elements(static_cast<std::byte*>(rows.data) +
                                (row * rows.stride(0) + head * rows.stride(1)) * bytes,
                            rows.stride(2), nullptr, 0, rows.size(2), bytes);
}

void AttentionView::clear_rest_of_lse() const {
  const Tensor& lse = problem_.lse;
  if (!lse || !problem_.q_offsets) return;
  for (std::int64_t head = 0; head < lse.size(0); ++head)
    for (std::int64_t row = end_of(problem_.q_offsets); row < lse.size(1); ++row)
      static_cast<float*>(lse.data)[head * lse.stride(0) + row * lse.stride(1)] =
          -std::numeric_limits<float>::infinity();
}

}  // namespace tessera::cpu
