#include "src/kernels/cpu/product_setup.hpp"

#include <algorithm>
#include <utility>

#include "src/kernels/cpu/parallel.hpp"
#include "src/problem/scale_rules.hpp"

namespace tessera::cpu {

namespace {

/// The last two dimensions of one batch of a tensor; `rank`: of the tensor without a batch.
MatrixView batch_view(const Tensor& tensor, int rank, std::int64_t batch) {
  MatrixView view;
  view.data = static_cast<const char*>(tensor.data);
  view.dtype = tensor.dtype;
  view.row = tensor.stride(tensor.rank - 2);
  view.col = tensor.stride(tensor.rank - 1);
  if (tensor.rank > rank && tensor.size(0) > 1)
    view.data += batch * tensor.stride(0) * size_of(tensor.dtype);
  return view;
}

/// The factors of one batch, as the tensor is stored.
ScaleView dense_factors(const Operand& operand, std::int64_t batch) {
  const Tensor &scale = operand.scale, &dense = operand.dense;
  ScaleView view;
  view.data = static_cast<const float*>(scale.data);
  if (scale.rank == 1) return view;  // one for all
  const auto box = planning::scale_box(dense.size(dense.rank - 2), dense.size(dense.rank - 1),
                                       scale.size(scale.rank - 2), scale.size(scale.rank - 1));
  if (scale.rank == 3 && scale.size(0) > 1) view.data += batch * scale.stride(0);
  view.row = scale.stride(scale.rank - 2), view.col = scale.stride(scale.rank - 1);
  view.box_rows = box->rows, view.box_cols = box->cols;
  return view;
}

}  // namespace

MatrixView dense_view(const Tensor& tensor, bool transposed, std::int64_t batch) {
  MatrixView view = batch_view(tensor, 2, batch);
  if (transposed) std::swap(view.row, view.col);
  return view;
}

MatrixView dense_view(const Operand& operand, std::int64_t batch) {
  MatrixView view = dense_view(operand.dense, false, batch);
  if (operand.scale) view.scale = dense_factors(operand, batch);
  return operand.transposed ? view.turned() : view;
}

ScaleView pool_factors(const Operand& operand, std::int64_t block_rows, std::int64_t batch) {
  const Tensor& scale = operand.scale;
  if (!scale) return {};
  ScaleView view;
  view.data = static_cast<const float*>(scale.data);
  if (scale.rank == 2 && scale.size(0) > 1) view.data += batch * scale.stride(0);
  if (scale.rank == 1 && scale.size(0) == 1) return view;
  view.row = scale.stride(scale.rank - 1);
  view.box_rows = block_rows;
  return view;
}

MatrixView pool_view(const BsrMatrix& matrix, bool transposed, std::int64_t batch) {
  MatrixView view = batch_view(matrix.values, 3, batch);
  view.block_rows = transposed ? matrix.block_cols() : matrix.block_rows();
  view.block_stride = pool_stride(matrix);
  if (transposed) std::swap(view.row, view.col);
  return view;
}

TileOutput block_output(const BsrMatrix& out, std::int64_t batch, std::int64_t element, float alpha,
                        float beta) {
  const MatrixView values = pool_view(out, false, batch);
  TileOutput to;
  to.out = const_cast<char*>(values.data) + element * size_of(values.dtype);
  to.out_dtype = values.dtype;
  to.out_row = values.row;
  to.out_col = values.col;
  to.alpha = alpha;
  if (beta != 0.0f) {
    to.beta = beta;
    to.c = to.out;
    to.c_dtype = to.out_dtype;
    to.c_row = to.out_row;
    to.c_col = to.out_col;
  }
  return to;
}

ProductContext::ProductContext(const planning::KernelRow& row, void* workspace,
                               std::int64_t packed_floats, int threads)
    : isa_(simd()), tile_(row.tile), threads_(threads), packed_floats_(packed_floats) {
  core::Carver carver(workspace);
  packed_ = carver.add<float>(packed_floats);
  per_thread_.resize(static_cast<std::size_t>(threads));
  for (Thread& thread : per_thread_)
    thread.scratch = planning::carve_product_scratch(carver, tile_);
}

std::int64_t ProductContext::Thread::take_strips(const PackedRight& right, int begin, int end) {
  strips.clear();
  for (int i = begin; i < end; ++i) strips.push_back({right.strip(i), right.strips.width(i)});
  return static_cast<std::int64_t>(right.strips.first(end) - right.strips.first(begin)) *
         right.lanes;
}

void ProductContext::multiply_and_store(Thread& thread, const MatrixView& left, int rows,
                                        const PackedRight& right, int begin, int end,
                                        std::int64_t cols, const TileOutput& to) const {
  const std::int64_t first = static_cast<std::int64_t>(right.strips.first(begin)) * right.lanes;
  const std::int64_t pitch = thread.take_strips(right, begin, end);
  multiply(thread, left, rows, pitch);
  store_tile(isa_, thread.scratch.c, pitch, rows, static_cast<int>(std::min(pitch, cols - first)),
             to.from(0, first), thread.scratch);
}

void ProductContext::pack(const std::vector<PackJob>& jobs) const {
  // Work items are pieces of strips, so that a single strip keeps all threads busy.
  constexpr std::int64_t kPiece = 512;
  struct Piece {
    const PackJob* job;
    int strip;
    std::int64_t begin, end;
  };
  std::vector<Piece> pieces;
  for (const PackJob& job : jobs)
    for (int strip = 0; strip < job.right.strips.count; ++strip)
      for (std::int64_t begin = 0; begin < job.right.rows; begin += kPiece)
        pieces.push_back({&job, strip, begin, std::min(begin + kPiece, job.right.rows)});
  parallel_for(threads_, static_cast<std::int64_t>(pieces.size()), [&](int, std::int64_t i) {
    const Piece& piece = pieces[static_cast<std::size_t>(i)];
    const PackJob& job = *piece.job;
    const std::int64_t skip =
        static_cast<std::int64_t>(job.right.strips.first(piece.strip)) * job.right.lanes;
    pack_strip(isa_, job.source, job.first_col + skip, job.first_col + job.cols, job.right,
               piece.strip, piece.begin, piece.end);
  });
}

}  // namespace tessera::cpu
