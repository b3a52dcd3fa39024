#include "src/cpu/attention_view.hpp"

#include <tessera/host_tensor.hpp>

#include "src/core/check_lists.hpp"
#include "src/plan/views.hpp"

namespace tessera::cpu {

KeyRowsView::Run KeyRowsView::run(std::int64_t key, std::int64_t end) const {
  if (!paged) return {rows.at(key), end - key};
  const planning::PageView::Run run = pages.run(batch, key, end);
  if (run.page < 0) return {nullptr, run.count};
  return {rows.data + (run.page * page_stride + run.slot * rows.row) * size_of(rows.dtype),
          run.count};
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

void fill_unused_rows(const Tensor& tensor, int rows, const Tensor& offsets, float value) {
  if (is_empty(tensor) || !offsets) return;
  const std::int64_t first = core::read_entry(offsets, 0, offsets.size(0) - 1);
  Tensor unused = tensor;
  unused.shape[static_cast<std::size_t>(rows)] -= first;
  for (std::int64_t i = 0; i < unused.numel(); ++i) {
    std::int64_t at = first * tensor.stride(rows), rest = i;
    for (int d = tensor.rank - 1; d >= 0; --d) {
      at += rest % unused.size(d) * tensor.stride(d);
      rest /= unused.size(d);
    }
    store_from_float(tensor.data, tensor.dtype, at, value);
  }
}

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
