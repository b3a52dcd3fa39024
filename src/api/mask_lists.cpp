#include <algorithm>

#include <tessera/convert.hpp>

#include "src/api/conversions.hpp"
#include "src/kernels/cpu/convert.hpp"
#include "src/walk/conversions.hpp"

namespace tessera {
namespace {

using api::check_written_list;
using core::Dim;
using core::refuse;
using core::Where;
using core::words;
using planning::MaskColumns;
using planning::MaskRows;

void check_blocks(const Where& where, const Tensor& blocks, const Device& device,
                  unsigned accepted) {
  const Dim dims[] = {{"batch|1"}, {"heads|1"}, {"rows"}, {"cols"}};
  core::check_list(where, blocks, device, dims, accepted);
  core::check_pointer(where, blocks);
}

/// Checks lists that a call writes. `sets`: the shape of the counts. `largest`: the upper bound of
/// counts and indices.
void check_written_lists(const Where& where, const BlockList& list, const Device& device,
                         core::Dims sets, std::int64_t largest) {
  if (list.offsets) refuse(where, "counts and indices", "offsets");
  check_written_list(where / "counts", list.counts, device, sets, largest);
  const Dim indices[] = {{"batch", list.counts.size(0)},
                         {"heads", list.counts.size(1)},
                         {sets[2].name, list.counts.size(2)},
                         {"capacity"}};
  check_written_list(where / "indices", list.indices, device, indices, largest);
  core::check_same_dtype(where / "indices", list.indices, list.counts.dtype, "counts");
}

MaskRows rows_of(const Where& out_name, const Tensor& blocks, const BlockList& out) {
  const Dim sets[] = {
      {"batch", blocks.size(0)}, {"heads", blocks.size(1)}, {"rows", blocks.size(2)}};
  check_written_lists(out_name, out, blocks.device, sets, blocks.size(3));
  MaskRows shape;
  shape.dtype = blocks.dtype;
  shape.batch = blocks.size(0);
  shape.heads = blocks.size(1);
  shape.rows = blocks.size(2);
  shape.cols = blocks.size(3);
  shape.capacity = out.indices.size(3);
  shape.blocks = blocks.data;
  shape.strides = planning::list_strides(blocks);
  shape.counts = planning::sink_of(out.counts);
  shape.indices = planning::sink_of(out.indices);
  return shape;
}

void add_lists(core::Outputs& outputs, const Where& out_name, const BlockList& out) {
  outputs.add(out_name / "counts", out.counts);
  outputs.add(out_name / "indices", out.indices);
}

void write(const char* call, const MaskRows& shape, const Device& device,
           const Execution& execution) {
  if (device.kind == DeviceKind::cpu) return cpu::list_rows(shape);
  [[maybe_unused]] const cuda::Place place = api::place_of(call, device, execution);
  if constexpr (api::kHasGpus) cuda::list_rows(shape, place);
}

constexpr unsigned kFlags = core::dtypes({DType::u8});

}  // namespace

void list_blocks(const Tensor& blocks, const BlockList& out, const Execution& execution) {
  const Where call("list_blocks");
  check_blocks(call / "blocks", blocks, blocks.device, kFlags);
  const MaskRows rows = rows_of(call / "out", blocks, out);
  core::Outputs outputs;
  add_lists(outputs, call / "out", out);
  outputs.check_input(call / "blocks", blocks);
  write("list_blocks", rows, blocks.device, execution);
}

void list_blocks(const Tensor& full, const Tensor& partial, const BlockList& full_out,
                 const BlockList& partial_out, const Execution& execution) {
  const Where call("list_blocks");
  const Device device = full.device;
  check_blocks(call / "full", full, device, kFlags);
  check_blocks(call / "partial", partial, device, kFlags);
  const Dim dims[] = {{"batch", full.size(0)},
                      {"heads", full.size(1)},
                      {"rows", full.size(2)},
                      {"cols", full.size(3)}};
  core::check_shape(call / "partial", partial, dims, ", the shape of full");
  const MaskRows whole = rows_of(call / "full_out", full, full_out);
  MaskRows rest = rows_of(call / "partial_out", partial, partial_out);
  rest.except = static_cast<const std::uint8_t*>(full.data);
  rest.except_strides = whole.strides;
  core::Outputs outputs;
  add_lists(outputs, call / "full_out", full_out);
  add_lists(outputs, call / "partial_out", partial_out);
  outputs.check_inputs(call, {{"full", full}, {"partial", partial}});
  write("list_blocks", whole, device, execution);
  write("list_blocks", rest, device, execution);
}

void top_k_blocks(const Tensor& scores, std::int64_t k, const BlockList& out,
                  const Execution& execution) {
  const Where call("top_k_blocks");
  check_blocks(call / "scores", scores, scores.device, core::kFloats);
  MaskRows shape = rows_of(call / "out", scores, out);
  if (k < 0) refuse(call / "k", "zero or more blocks", words(k));
  shape.keep = std::min(k, shape.cols);
  if (shape.keep > shape.capacity)
    refuse(call / "out" / "indices", words("a capacity of at least ", shape.keep),
           to_string(out.indices));
  core::Outputs outputs;
  add_lists(outputs, call / "out", out);
  outputs.check_input(call / "scores", scores);
  write("top_k_blocks", shape, scores.device, execution);
}

void transpose_lists(const BlockList& list, const BlockColumns& out, const Execution& execution) {
  const Where call("transpose_lists");
  const Tensor &counts = out.lists.counts, &indices = out.lists.indices;
  const Device device = counts.device;
  const Dim sets[] = {{"batch|1"}, {"heads|1"}, {"cols"}};
  core::check_list(call / "out" / "lists" / "counts", counts, device, sets);
  const core::MaskUse use{.batch = counts.size(0),
                          .heads = counts.size(1),
                          .kv_length = counts.size(2),
                          .device = device};
  const std::int64_t rows = core::check_block_list(call / "list", list, use);
  check_written_lists(call / "out" / "lists", out.lists, device, sets, rows);
  MaskColumns shape{.stored = planning::view_of(list),
                    .batch = use.batch,
                    .heads = use.heads,
                    .cols = use.kv_length,
                    .capacity = indices.size(3),
                    .counts = planning::sink_of(counts),
                    .rows = planning::sink_of(indices),
                    .entries = {}};
  if (out.entries) {
    const Dim dims[] = {{"batch", use.batch},
                        {"heads", use.heads},
                        {"cols", shape.cols},
                        {"capacity", shape.capacity}};
    const Where where = call / "out" / "entries";
    check_written_list(where, out.entries, device, dims, shape.stored.extent);
    core::check_same_dtype(where, out.entries, counts.dtype, "counts");
    shape.entries = planning::sink_of(out.entries);
  }
  core::Outputs outputs;
  add_lists(outputs, call / "out" / "lists", out.lists);
  outputs.add(call / "out" / "entries", out.entries);
  outputs.check_inputs(call / "list", list);
  if (device.kind == DeviceKind::cpu) return cpu::list_columns(shape);
  [[maybe_unused]] const cuda::Place place = api::place_of("transpose_lists", device, execution);
  if constexpr (api::kHasGpus) cuda::list_columns(shape, place);
}

}  // namespace tessera
