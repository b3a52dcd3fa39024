#include <tessera/convert.hpp>

#include <algorithm>
#include <cmath>
#include <utility>

#include <tessera/error.hpp>

#include "src/api/conversions.hpp"
#include "src/api/memory.hpp"
#include "src/kernels/cpu/block_lists.hpp"
#include "src/kernels/cpu/convert.hpp"

namespace tessera {
namespace {

using api::check_written_list;
using api::kHasGpus;
using api::on_cpu;
using api::place_of;
using core::Dim;
using core::Dims;
using core::refuse;
using core::Where;
using core::words;

/// Checks the shape [rows, cols] or [batch, rows, cols]. `may_share`: one matrix may serve all
/// batches.
void check_grid(const Where& where, const Tensor& t, std::int64_t batches, std::int64_t rows,
                std::int64_t cols, bool may_share) {
  const Dim dims[] = {{"batch", batches, may_share}, {"rows", rows}, {"cols", cols}};
  const bool flat = t.rank == 2 && (batches == 1 || may_share);
  core::check_shape(where, t, Dims(dims).subspan(flat ? 1 : 0));
}

/// Checks a copy in either direction. `matrix_name`: the call's name for `matrix`.
planning::BlockCopy check_copy(const Where& call, const char* matrix_name, const BsrMatrix& matrix,
                               const Tensor& dense, bool to_dense) {
  const Where where = call / matrix_name;
  const Device device = matrix.values.device;
  const std::int64_t batches = core::check_bsr_layout(where, matrix, device);
  core::check_dtype(where / "values", matrix.values, core::kValues);
  core::check_tensor(call / "dense", dense, device);
  core::check_same_dtype(call / "dense", dense, matrix.values.dtype,
                         to_dense ? "matrix.values" : "out.values");
  check_grid(call / "dense", dense, batches, matrix.rows, matrix.cols, !to_dense);
  core::check_no_alias(to_dense ? call / "dense" : where / "values",
                       to_dense ? dense : matrix.values);
  core::check_pointers(where, matrix);
  core::check_pointer(call / "dense", dense);
  core::check_bsr_lists(where, matrix, !to_dense);
  core::Outputs outputs;
  if (to_dense) {
    outputs.add(call / "dense", dense);
    outputs.check_inputs(where, matrix);
  } else {
    outputs.add(where / "values", matrix.values);
    outputs.check_lists(where, matrix);
    outputs.check_input(call / "dense", dense);
  }
  return planning::block_copy(matrix, dense, batches);
}

/// The size of a block along the dimension `from_last`, counted from the last (1).
std::int64_t side_of(const Tensor& dense, const Tensor& norms, int from_last) {
  const std::int64_t size = dense.size(dense.rank - from_last);
  const std::int64_t blocks = norms.size(norms.rank - from_last);
  if (blocks == 0 && size == 0) return 1;
  if (blocks == 0 || size == 0 || size % blocks != 0) {
    refuse(Where("block_norms") / "norms",
           words("numbers of blocks that divide the sizes of dense ", to_string(dense)),
           to_string(norms));
  }
  return size / blocks;
}

std::uint32_t key_of(const BlockChoice& choice) {
  const Where where = Where("select_blocks") / "choice";
  if (choice.above.has_value() == choice.keep.has_value()) {
    refuse(where, "either above or keep", choice.keep ? "both" : "neither");
  }
  if (choice.above && std::isnan(*choice.above)) refuse(where / "above", "a number", "NaN");
  if (choice.keep && *choice.keep < 0)
    refuse(where / "keep", "zero or more blocks", words(*choice.keep));
  return choice.above ? planning::norm_key(*choice.above) : 0;
}

}  // namespace

void to_dense(const BsrMatrix& matrix, const Tensor& dense, const Execution& execution) {
  const planning::BlockCopy copy =
      check_copy(Where("to_dense"), "matrix", matrix, dense, /*to_dense=*/true);
  api::to_dense("to_dense", copy, dense.device, execution);
}

void gather_blocks(const Tensor& dense, const BsrMatrix& out, const Execution& execution) {
  const planning::BlockCopy copy =
      check_copy(Where("gather_blocks"), "out", out, dense, /*to_dense=*/false);
  if (on_cpu(dense)) return cpu::gather_blocks(copy);
  [[maybe_unused]] const cuda::Place place = place_of("gather_blocks", dense.device, execution);
  if constexpr (kHasGpus) cuda::gather_blocks(copy, place);
}

void block_norms(const Tensor& dense, BlockNorm norm, const Tensor& norms,
                 const Execution& execution) {
  const Where call("block_norms");
  core::check_tensor(call / "dense", dense, dense.device);
  core::check_dtype(call / "dense", dense, core::kFloats);
  if (dense.rank != 2 && dense.rank != 3)
    refuse(call / "dense", "shape [rows, cols] or [batch, rows, cols]", to_string(dense));
  const std::int64_t batches = dense.rank == 3 ? dense.size(0) : 1;
  core::check_tensor(call / "norms", norms, dense.device);
  core::check_dtype(call / "norms", norms, core::dtypes({DType::f32}));
  check_grid(call / "norms", norms, batches, core::kAny, core::kAny, false);
  core::check_no_alias(call / "norms", norms);
  core::check_pointer(call / "dense", dense);
  core::check_pointer(call / "norms", norms);
  core::Outputs outputs;
  outputs.add(call / "norms", norms);
  outputs.check_input(call / "dense", dense);
  const planning::NormsShape shape{.dtype = dense.dtype,
                                   .norm = norm,
                                   .batches = batches,
                                   .rows = norms.size(norms.rank - 2),
                                   .cols = norms.size(norms.rank - 1),
                                   .block_rows = side_of(dense, norms, 2),
                                   .block_cols = side_of(dense, norms, 1),
                                   .dense = planning::grid_of(dense),
                                   .norms = planning::grid_of(norms)};
  if (on_cpu(dense)) return cpu::block_norms(shape);
  [[maybe_unused]] const cuda::Place place = place_of("block_norms", dense.device, execution);
  if constexpr (kHasGpus) cuda::block_norms(shape, place);
}

void select_blocks(const Tensor& norms, const BlockChoice& choice, const SelectedBlocks& out,
                   const Execution& execution) {
  const Where call("select_blocks");
  const Device device = norms.device;
  core::check_tensor(call / "norms", norms, device);
  core::check_dtype(call / "norms", norms, core::dtypes({DType::f32}));
  const Dim norms_dims[] = {{"block rows"}, {"block cols"}};
  core::check_shape(call / "norms", norms, norms_dims);
  core::check_pointer(call / "norms", norms);
  const std::int64_t rows = norms.size(0), cols = norms.size(1);
  const Dim offsets_dims[] = {{"block rows + 1", rows + 1}};
  const Dim indices_dims[] = {{"capacity"}};
  const Dim count_dims[] = {{"count", 1}};
  check_written_list(call / "out" / "row_offsets", out.row_offsets, device, offsets_dims, 0);
  check_written_list(call / "out" / "col_indices", out.col_indices, device, indices_dims, cols);
  core::check_same_dtype(call / "out" / "col_indices", out.col_indices, out.row_offsets.dtype,
                         "row_offsets");
  check_written_list(call / "out" / "count", out.count, device, count_dims, rows * cols);
  core::check_same_dtype(call / "out" / "count", out.count, out.row_offsets.dtype, "row_offsets");
  const std::uint32_t above = key_of(choice);
  core::Outputs outputs;
  api::add_buffer(outputs, "select_blocks", "workspace", execution.workspace,
                  select_blocks_workspace(norms), device);
  outputs.add(call / "out" / "row_offsets", out.row_offsets);
  outputs.add(call / "out" / "col_indices", out.col_indices);
  outputs.add(call / "out" / "count", out.count);
  outputs.check_input(call / "norms", norms);
  const planning::SelectShape shape{.rows = rows,
                                    .cols = cols,
                                    .capacity = out.col_indices.size(0),
                                    .norms = planning::grid_of(norms),
                                    .by_count = choice.keep.has_value(),
                                    .keep = std::min(choice.keep.value_or(0), rows * cols),
                                    .above = above,
                                    .offsets = planning::sink_of(out.row_offsets),
                                    .indices = planning::sink_of(out.col_indices),
                                    .count = planning::sink_of(out.count)};
  if (on_cpu(norms)) return cpu::select_blocks(shape);
  [[maybe_unused]] const cuda::Place place = place_of("select_blocks", device, execution);
  const api::CallBuffer scratch("workspace", execution.workspace, select_blocks_workspace(norms),
                                device, execution);
  if constexpr (kHasGpus) cuda::select_blocks(shape, scratch.data(), place);
}

void transpose_lists(const BsrMatrix& matrix, const ColumnLists& out, const Execution& execution) {
  const Where call("transpose_lists"), to = call / "out";
  const Device device = matrix.values.device;
  core::check_bsr_layout(call / "matrix", matrix, device);
  const planning::BsrView view = planning::view_of(matrix);
  const std::int64_t batches = planning::list_batches(matrix);
  const bool batched = matrix.row_offsets.rank == 2 || matrix.col_indices.rank == 2;
  const Dim offsets_dims[] = {{"batch", batches}, {"block cols + 1", view.block_cols + 1}};
  const Dim entry_dims[] = {{"batch", batches}, {"stored blocks", view.stored}};
  const std::size_t skip = batched ? 0 : 1;
  const std::int64_t largest = std::max(view.stored, view.block_rows);
  check_written_list(to / "col_offsets", out.col_offsets, device, Dims(offsets_dims).subspan(skip),
                     largest);
  for (const auto& [name, list] :
       {std::pair<const char*, const Tensor&>{"row_indices", out.row_indices},
        {"positions", out.positions}}) {
    check_written_list(to / name, list, device, Dims(entry_dims).subspan(skip), largest);
    core::check_same_dtype(to / name, list, out.col_offsets.dtype, "col_offsets");
  }
  core::check_pointer(call / "matrix" / "row_offsets", matrix.row_offsets);
  core::check_pointer(call / "matrix" / "col_indices", matrix.col_indices);
  core::check_bsr_lists(call / "matrix", matrix);
  core::Outputs outputs;
  api::add_buffer(outputs, "transpose_lists", "workspace", execution.workspace,
                  transpose_lists_workspace(matrix), device);
  outputs.add(to / "col_offsets", out.col_offsets);
  outputs.add(to / "row_indices", out.row_indices);
  outputs.add(to / "positions", out.positions);
  outputs.check_lists(call / "matrix", matrix);
  planning::GpuLists lists;
  lists.offsets = planning::sink_of(out.col_offsets);
  lists.rows = planning::sink_of(out.row_indices);
  lists.positions = planning::sink_of(out.positions);
  lists.lines = view.block_cols;
  lists.stored = view.stored;
  if (on_cpu(matrix.values)) return cpu::write_transposed_lists(view, batches, lists);
  [[maybe_unused]] const cuda::Place place = place_of("transpose_lists", device, execution);
  const api::CallBuffer scratch("workspace", execution.workspace, transpose_lists_workspace(matrix),
                                device, execution);
  core::Carver carver(scratch.data());
  lists.counts = planning::carve_list_counts(carver, batches, view.block_rows, view.block_cols);
  if constexpr (kHasGpus) cuda::transpose_lists(view, batches, lists, place);
}

std::int64_t select_blocks_workspace(const Tensor& norms) {
  if (on_cpu(norms)) return 0;
  core::Carver carver;
  planning::carve_select_scratch(carver, norms.size(0));
  return carver.used();
}

std::int64_t transpose_lists_workspace(const BsrMatrix& matrix) {
  if (on_cpu(matrix.values)) return 0;
  core::check_bsr_layout(Where("transpose_lists") / "matrix", matrix, matrix.values.device);
  const planning::BsrView view = planning::view_of(matrix);
  core::Carver carver;
  planning::carve_list_counts(carver, planning::list_batches(matrix), view.block_rows,
                              view.block_cols);
  return carver.used();
}

}  // namespace tessera
