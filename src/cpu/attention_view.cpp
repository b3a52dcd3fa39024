#include "src/cpu/attention_view.hpp"

#include <tessera/host_tensor.hpp>

#include "src/core/check_lists.hpp"
#include "src/plan/views.hpp"

namespace tessera::cpu {

using core::read_index;

KeyRowsView::Run KeyRowsView::run(std::int64_t key, std::int64_t end) const {
  if (!paged) return {rows.at(key), end - key};
  const planning::PageView::Run run = pages.run(batch, key, end);
  if (run.page < 0) return {nullptr, run.count};
  return {rows.data + (run.page * page_stride + run.slot * rows.row) * size_of(rows.dtype),
          run.count};
}

namespace {

std::int64_t per_sequence(const Tensor& list, std::int64_t batch, std::int64_t otherwise) {
  return list ? read_index(list, batch * list.stride(0)) : otherwise;
}

}  // namespace

Sequence AttentionView::sequence(std::int64_t batch) const {
  const AttentionProblem& p = problem_;
  Sequence s;
  s.batch = batch;
  s.q_length = shape_.q_length;
  s.kv_length = shape_.kv_length;
  if (p.q_offsets) {
    s.q_begin = per_sequence(p.q_offsets, batch, 0);
    s.q_length = per_sequence(p.q_offsets, batch + 1, 0) - s.q_begin;
  }
  if (p.kv_offsets) {
    s.kv_begin = per_sequence(p.kv_offsets, batch, 0);
    s.kv_length = per_sequence(p.kv_offsets, batch + 1, 0) - s.kv_begin;
  }
  planning::Visibility& sight = s.sight;
  sight.used = planning::intersect({0, s.kv_length}, {per_sequence(p.kv_begin, batch, 0),
                                                      per_sequence(p.kv_end, batch, s.kv_length)});
  const std::int64_t used_end = per_sequence(p.kv_end, batch, s.kv_length);
  sight.kv_position = per_sequence(p.kv_position, batch, 0);
  sight.q_position = per_sequence(p.q_position, batch, sight.kv_position + used_end - s.q_length);
  sight.window_left = shape_.window_left;
  sight.window_right = shape_.window_right;
  return s;
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

}  // namespace

RowsView AttentionView::queries(const Tensor& tensor, const Sequence& sequence,
                                std::int64_t head) const {
  return rows_of(tensor, sequence.batch, sequence.q_begin, head);
}

KeyRowsView AttentionView::keys(const Tensor& tensor, const Sequence& sequence,
                                std::int64_t kv_head) const {
  KeyRowsView view;
  view.paged = shape_.kv_layout == planning::KvLayout::paged;
  view.batch = sequence.batch;
  view.rows = rows_of(tensor, view.paged ? 0 : sequence.batch, sequence.kv_begin, kv_head);
  if (view.paged) {
    view.pages = planning::page_view(problem_.page_table, tensor);
    view.page_stride = tensor.stride(0);
  }
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

}  // namespace tessera::cpu
