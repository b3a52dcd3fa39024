#include <cstdlib>
#include <utility>

#include "src/core/check_lists.hpp"
#include "src/problem/blas_rules.hpp"
#include "src/problem/pool_rules.hpp"
#include "src/problem/scale_rules.hpp"
#include "src/problem/shape.hpp"
#include "src/problem/tma_rules.hpp"

namespace tessera::planning {

using namespace core;  // the checks

namespace {

// The device of a sparse or dense operand.
const Device& device_of(const Operand& operand) {
  return operand.is_sparse() ? operand.sparse.values.device : operand.dense.device;
}

// Whether TMA can read a tensor whose last two dimensions are the matrix.
bool tma_readable(const Tensor& t) {
  if (has_no_elements(t)) return true;  // nothing to read
  // Either of the two dimensions may be contiguous.
  if (!lies_along(t, t.rank - 1) && !lies_along(t, t.rank - 2)) return false;
  // Blocks of a batch are addressed as one pool.
  if (t.rank == 4 && t.size(0) > 1 && t.stride(0) != t.size(1) * t.stride(1)) return false;
  return begins_aligned(t);
}

// Sets the layout of the matrix, or of each stored block. The CPU backend reads any layout, so its
// plans do not depend on it.
void set_layout(OperandShape& shape, const Tensor& t) {
  if (t.device.kind == DeviceKind::cpu) return;
  shape.tma_readable = tma_readable(t);
  shape.unit_row_stride = t.stride(t.rank - 2) == 1;
  shape.unit_col_stride = t.stride(t.rank - 1) == 1;
}

bool pool_fits(const Tensor& values) {
  const std::int64_t blocks =
      values.size(values.rank - 3) * (values.rank == 4 ? values.size(0) : 1);
  const std::int64_t bytes = values.stride(values.rank - 3) * size_of(values.dtype);
  return blocks == 0 || bytes <= kMaxPoolBytes / blocks;
}

// The same for the matrices of a batch, which are read as one block each.
bool batch_fits(const Tensor& t) {
  double last = 0;  // element; strides may be as large as 2^63
  for (int i = 0; i < t.rank; ++i)
    last += static_cast<double>(t.size(i) - 1) * static_cast<double>(t.stride(i));
  return has_no_elements(t) || (last + 1) * size_of(t.dtype) <= static_cast<double>(kMaxPoolBytes);
}

OperandShape check_dense(const Where& where, const Tensor& tensor, const Device& device) {
  check_tensor(where, tensor, device);
  check_dtype(where, tensor, kValues);
  if (tensor.rank != 2 && tensor.rank != 3) {
    refuse(where, "shape [rows, cols] or [batch, rows, cols]", to_string(tensor));
  }
  OperandShape shape;
  shape.dtype = tensor.dtype;
  shape.rows = tensor.size(tensor.rank - 2);
  shape.cols = tensor.size(tensor.rank - 1);
  shape.batch = tensor.rank == 3 ? tensor.size(0) : 1;
  set_layout(shape, tensor);
  shape.pool_fits = device.kind == DeviceKind::cpu || batch_fits(tensor);
  return shape;
}

// The shape of a BSR matrix as it is stored. `values`: the accepted dtypes.
OperandShape check_bsr(const Where& where, const BsrMatrix& matrix, const Device& device,
                       unsigned values) {
  OperandShape shape;
  shape.sparse = true;
  shape.batch = check_bsr_layout(where, matrix, device);
  check_dtype(where / "values", matrix.values, values);
  shape.dtype = matrix.values.dtype;
  shape.rows = matrix.rows;
  shape.cols = matrix.cols;
  shape.block = {matrix.block_rows(), matrix.block_cols()};
  shape.stored = matrix.stored_blocks();
  shape.index = matrix.row_offsets.dtype;
  set_layout(shape, matrix.values);
  shape.pool_fits = device.kind == DeviceKind::cpu || pool_fits(matrix.values);
  return shape;
}

OperandShape check_operand(const Where& where, const Operand& operand, const Device& device) {
  if (operand.is_sparse() && operand.dense) {
    refuse(where, "either a dense tensor or a BSR matrix", "both");
  }
  if (!operand.is_sparse() && !operand.dense) {
    refuse(where, "a dense tensor or a BSR matrix", "neither");
  }
  OperandShape shape = operand.is_sparse()
                           ? check_bsr(where / "sparse", operand.sparse, device, kValues)
                           : check_dense(where, operand.dense, device);
  shape.transposed = operand.transposed;
  if (operand.transposed) std::swap(shape.rows, shape.cols);
  return shape;
}

/// Whether a line of the product (a row of A, a column of B) is a row of what is stored.
bool stores_lines_in_rows(const OperandShape& shape, bool is_left) {
  return is_left != shape.transposed;
}

[[noreturn]] void refuse_dense_factors(const Where& where, const Operand& operand,
                                       const OperandShape& shape, bool is_left) {
  const Tensor& dense = operand.dense;
  const std::int64_t rows = dense.size(dense.rank - 2), cols = dense.size(dense.rank - 1);
  const bool in_rows = stores_lines_in_rows(shape, is_left);
  const auto text = [](std::int64_t r, std::int64_t c) { return words("[", r, ", ", c, "]"); };
  const std::int64_t rb = scale_blocks(rows), cb = scale_blocks(cols);
  refuse(
      where,
      words("[1], ", in_rows ? text(rows, 1) : text(1, cols), " (per ",
            is_left ? "row of a" : "column of b", "), ", in_rows ? text(rows, cb) : text(rb, cols),
            " (1 x 128) or ", text(rb, cb), " (128 x 128)",
            dense.rank == 3 ? words("; or a batch of ", dense.size(0), " of these") : ""),
      to_string(operand.scale));
}

ScaleForm dense_form(const Where& where, const Operand& operand, const OperandShape& shape,
                     bool is_left) {
  const Tensor &dense = operand.dense, &scale = operand.scale;
  if (scale.rank == 1 && scale.size(0) == 1) return ScaleForm::tensor;
  const auto refuse_form = [&] { refuse_dense_factors(where, operand, shape, is_left); };
  if (scale.rank < 2 || scale.rank > dense.rank ||
      (scale.rank == 3 && scale.size(0) != 1 && scale.size(0) != dense.size(0)))
    refuse_form();
  const auto box = scale_box(dense.size(dense.rank - 2), dense.size(dense.rank - 1),
                             scale.size(scale.rank - 2), scale.size(scale.rank - 1));
  if (!box) refuse_form();
  const bool in_rows = stores_lines_in_rows(shape, is_left);
  const std::int64_t lines = is_left ? shape.rows : shape.cols;
  const std::int64_t depth = is_left ? shape.cols : shape.rows;
  const std::int64_t line_box = in_rows ? box->rows : box->cols;
  const std::int64_t depth_box = in_rows ? box->cols : box->rows;
  if (depth_box >= depth) {
    const bool shared = scale.rank == 2 || scale.size(0) == 1;
    if (line_box >= lines) return shared ? ScaleForm::tensor : ScaleForm::matrix;
    return line_box == 1 ? ScaleForm::line : ScaleForm::block_128;
  }
  if (depth_box != kScaleBlock) refuse_form();
  return line_box == 1 ? ScaleForm::line_128 : ScaleForm::block_128;
}

ScaleForm sparse_form(const Where& where, const Operand& operand) {
  const Tensor &values = operand.sparse.values, &scale = operand.scale;
  const std::int64_t stored = operand.sparse.stored_blocks();
  if (scale.rank == 1 && scale.size(0) == 1) return ScaleForm::tensor;
  const bool batched = values.rank == 4 && scale.rank == 2;
  if (scale.rank != (batched ? 2 : 1) || scale.size(scale.rank - 1) != stored ||
      (batched && scale.size(0) != values.size(0)))
    refuse(where,
           words("[1] or [", stored, "]",
                 values.rank == 4 ? words(" or [", values.size(0), ", ", stored, "]") : "",
                 ", a factor for each stored block"),
           to_string(scale));
  return ScaleForm::stored_block;
}

// Kernels of the GPU compute offsets of factors in 32 bits.
bool scale_fits(const Tensor& scale) {
  constexpr std::int64_t kMax = std::int64_t{1} << 31;
  std::int64_t span = 1;
  for (int i = 0; i < scale.rank; ++i) {
    const std::int64_t steps = scale.size(i) - 1, stride = std::abs(scale.stride(i));
    if (steps <= 0) continue;
    if (stride > kMax / steps) return false;
    span += steps * stride;
  }
  return span <= kMax;
}

/// Checks the factors of an operand of matmul, and sets what a shape says of them.
void check_factors(const Where& where, const Operand& operand, OperandShape& shape,
                   const Device& device, bool is_left) {
  if (!operand.scale) return;
  if (!is_fp8(shape.dtype))
    refuse(where, words("none, as the values are ", to_string(shape.dtype), " and not FP8"),
           to_string(operand.scale));
  check_tensor(where, operand.scale, device);
  check_dtype(where, operand.scale, dtypes({DType::f32}));
  shape.scale =
      shape.sparse ? sparse_form(where, operand) : dense_form(where, operand, shape, is_left);
  if (device.kind == DeviceKind::cuda) shape.scale_fits = scale_fits(operand.scale);
}

/// An operand of an operation without factors.
OperandShape check_unscaled(const Where& where, const Operand& operand, const Device& device) {
  if (operand.scale)
    refuse(where / "scale", "none, as only matmul has factors", to_string(operand.scale));
  return check_operand(where, operand, device);
}

std::string came(const OperandShape& shape) {
  return words(to_string(shape.dtype), "[", shape.rows, ", ", shape.cols, "]",
               shape.sparse ? " BSR" : "", shape.transposed ? " after transposition" : "");
}

// Checks that the operands have the same inner dimension and dtype.
void check_sides(const Where& op, const OperandShape& a, const OperandShape& b) {
  if (b.rows != a.cols) {
    refuse(op / "b", words(a.cols, " rows to match the ", a.cols, " columns of a"), came(b));
  }
  if (b.dtype != a.dtype && !(is_fp8(a.dtype) && is_fp8(b.dtype))) {
    refuse(op / "b", words("dtype ", to_string(a.dtype), " as a has"), came(b));
  }
}

std::int64_t broadcast(const Where& where, std::int64_t batch, const OperandShape& shape) {
  if (batch == 1 || shape.batch == batch) return shape.batch;
  if (shape.batch == 1) return batch;
  refuse(where, words("a batch of ", batch, " or 1"), words("a batch of ", shape.batch));
}

// Checks the result. With a batch of 1, its batch dimension may be left out.
void check_result(const Where& where, const Tensor& tensor, const MatmulShape& shape) {
  const Dim dims[] = {
      {shape.grouped ? "groups" : "batch", shape.batch}, {"M", shape.m}, {"N", shape.n}};
  const bool two =
      shape.grouped ? shape.group_axis == GroupAxis::rows : shape.batch == 1 && tensor.rank == 2;
  check_output(where, tensor, shape.device, Dims(dims).subspan(two ? 1 : 0));
}

void check_bias(const Where& where, const Epilogue& epilogue, const MatmulShape& shape) {
  const bool by_row = epilogue.bias_axis == BiasAxis::row;
  // With grouped rows, each row belongs to one group and so has one bias.
  const bool batched =
      epilogue.bias.rank == 2 && !(by_row && shape.grouped && shape.group_axis == GroupAxis::rows);
  const Dim dims[] = {{shape.grouped ? "groups" : "batch", shape.batch},
                      by_row ? Dim{"M", shape.m} : Dim{"N", shape.n}};
  check_floats(where, epilogue.bias, shape.device, Dims(dims).subspan(batched ? 0 : 1));
}

void check_epilogue(const Where& where, const MatmulProblem& problem, const MatmulShape& shape) {
  const Epilogue& epilogue = problem.epilogue;
  check_finite(where / "alpha", epilogue.alpha);
  check_finite(where / "beta", epilogue.beta);
  if (epilogue.activation > Activation::silu) {
    refuse(where / "activation", "a known activation",
           words("number ", static_cast<int>(epilogue.activation)));
  }
  if (epilogue.bias_axis > BiasAxis::column) {
    refuse(where / "bias_axis", "row or column",
           words("number ", static_cast<int>(epilogue.bias_axis)));
  }
  if (epilogue.c) {
    const Tensor& out = problem.out;
    const Dim dims[] = {{"batch", out.size(0)}, {"M", shape.m}, {"N", shape.n}};
    check_floats(where / "c", epilogue.c, shape.device, Dims(dims).subspan(out.rank == 2 ? 1 : 0));
  }
  if (epilogue.bias) check_bias(where / "bias", epilogue, shape);
}

void require_dense(const Where& where, const Operand& operand, const char* accepted) {
  if (operand.is_sparse()) refuse(where, accepted, "a BSR matrix");
}

void require_flat(const Where& where, const Tensor& dense) {
  if (dense.rank != 2)
    refuse(where, "shape [rows, cols], as group_offsets is given", to_string(dense));
}

// Checks the operands and offsets of a grouped product; sets the group axis and the batch, which is
// the number of groups.
void check_groups(const Where& op, const MatmulProblem& problem, MatmulShape& shape) {
  if (problem.group_axis > GroupAxis::inner) {
    refuse(op / "group_axis", "rows or inner",
           words("number ", static_cast<int>(problem.group_axis)));
  }
  shape.grouped = true;
  shape.group_axis = problem.group_axis;
  const bool by_rows = shape.group_axis == GroupAxis::rows;
  const char* dense = by_rows ? "a dense matrix, as rows are grouped (b may be a BSR matrix)"
                              : "a dense matrix, as the inner dimension is grouped";
  require_dense(op / "a", problem.a, dense);
  require_flat(op / "a", problem.a.dense);
  if (!by_rows) {
    require_dense(op / "b", problem.b, dense);
    require_flat(op / "b", problem.b.dense);
  } else {
    // TMA requires that boxes begin at multiples of 16 bytes along the contiguous dimension. Groups
    // begin at any row, so rows must not be the contiguous dimension.
    const Tensor& a = problem.a.dense;
    const int depth = problem.a.transposed ? 0 : 1;
    if (a.stride(depth) != 1 || a.size(depth) == 1) shape.a.tma_readable = false;
  }

  const Where offsets = op / "group_offsets";
  const Dim dims[] = {{"groups + 1"}};
  check_list(offsets, problem.group_offsets, shape.device, dims);
  shape.batch = problem.group_offsets.size(0) - 1;
  const std::int64_t cut = by_rows ? shape.m : shape.k;
  if (shape.batch < (cut == 0 ? 0 : 1)) {
    refuse(offsets, words("groups + 1 entries, enough for a length of ", cut),
           to_string(problem.group_offsets));
  }
  if (by_rows && shape.b.batch != shape.batch) {
    refuse(op / "b", words("a batch of ", shape.batch, ", one matrix per group"),
           words("a batch of ", shape.b.batch));
  }
}

}  // namespace

MatmulShape shape_of(const MatmulProblem& problem) {
  const Where op("matmul");
  MatmulShape shape;
  shape.device = device_of(problem.a);
  shape.a = check_operand(op / "a", problem.a, shape.device);
  shape.b = check_operand(op / "b", problem.b, shape.device);
  check_sides(op, shape.a, shape.b);
  check_factors(op / "a" / "scale", problem.a, shape.a, shape.device, true);
  check_factors(op / "b" / "scale", problem.b, shape.b, shape.device, false);
  shape.m = shape.a.rows;
  shape.n = shape.b.cols;
  shape.k = shape.a.cols;
  if (problem.group_offsets) {
    check_groups(op, problem, shape);
  } else {
    shape.batch = broadcast(op / "b", shape.a.batch, shape.b);
  }
  check_result(op / "out", problem.out, shape);
  shape.out = problem.out.dtype;
  check_epilogue(op / "epilogue", problem, shape);
  if (shape.device.kind == DeviceKind::cuda) set_blas_limit(problem, shape);
  return shape;
}

SddmmShape shape_of(const SddmmProblem& problem) {
  const Where op("sddmm");
  require_dense(op / "a", problem.a, "a dense matrix (only out is sparse)");
  require_dense(op / "b", problem.b, "a dense matrix (only out is sparse)");
  SddmmShape shape;
  shape.device = device_of(problem.a);
  shape.a = check_unscaled(op / "a", problem.a, shape.device);
  shape.b = check_unscaled(op / "b", problem.b, shape.device);
  check_sides(op, shape.a, shape.b);
  shape.m = shape.a.rows;
  shape.n = shape.b.cols;
  shape.k = shape.a.cols;

  const Where out = op / "out";
  shape.out = check_bsr(out, problem.out, shape.device, kFloats);
  shape.pooled = problem.out.values.rank == 3;
  if (shape.out.rows != shape.m || shape.out.cols != shape.n) {
    refuse(out, words("a ", shape.m, " x ", shape.n, " matrix, as a * b is"),
           words(shape.out.rows, " x ", shape.out.cols));
  }
  // A batch of patterns may sample one unbatched product.
  shape.batch = broadcast(op / "b", shape.a.batch, shape.b);
  if (shape.batch != 1 && shape.out.batch != shape.batch) {
    refuse(out, words("a batch of ", shape.batch), words("a batch of ", shape.out.batch));
  }
  shape.batch = shape.out.batch;
  check_no_alias(out / "values", problem.out.values);
  if (shape.batch > 1 && problem.out.values.rank == 3 && problem.out.row_offsets.rank == 1) {
    refuse(out / "values", words("separate values for each of the ", shape.batch, " matrices"),
           to_string(problem.out.values));
  }
  check_finite(op / "alpha", problem.alpha);
  check_finite(op / "beta", problem.beta);
  return shape;
}

SpgemmShape shape_of(const SpgemmProblem& problem) {
  const Where op("spgemm");
  SpgemmShape shape;
  shape.device = device_of(problem.a);
  const auto check_side = [&](const Where& where, const Operand& operand) {
    const OperandShape side = check_unscaled(where, operand, shape.device);
    if (!side.sparse) refuse(where, "a BSR matrix", to_string(operand.dense));
    const BsrMatrix& matrix = operand.sparse;
    if (matrix.values.rank != 3 || matrix.row_offsets.rank != 1 || matrix.col_indices.rank != 1) {
      refuse(where, "a BSR matrix without a batch", to_string(matrix.values));
    }
    return side;
  };
  shape.a = check_side(op / "a", problem.a);
  shape.b = check_side(op / "b", problem.b);
  check_sides(op, shape.a, shape.b);
  shape.m = shape.a.rows;
  shape.n = shape.b.cols;
  shape.k = shape.a.cols;
  const std::int64_t a_inner = shape.a.transposed ? shape.a.block.rows : shape.a.block.cols;
  const std::int64_t b_inner = shape.b.transposed ? shape.b.block.cols : shape.b.block.rows;
  if (a_inner != b_inner) {
    refuse(op / "b", words("blocks of ", a_inner, " rows to match the columns of a's blocks"),
           words("blocks of ", b_inner, " rows"));
  }
  check_finite(op / "alpha", problem.alpha);
  check_finite(op / "beta", problem.beta);
  return shape;
}

}  // namespace tessera::planning
