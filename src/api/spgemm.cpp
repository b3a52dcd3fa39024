#include <tessera/spgemm.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <tessera/error.hpp>
#include <tessera/plan.hpp>

#include "src/api/memory.hpp"
#include "src/core/check_lists.hpp"
#include "src/cpu/backend.hpp"
#include "src/plan/select.hpp"
#include "src/plan/shape.hpp"

namespace tessera {

struct SpgemmPlan::Data {
  Plan plan;
  planning::SpgemmShape shape;
  planning::BlockShape block;  // of the result
  std::int64_t inner = 0;      // depth of a block product
  cpu::SpgemmPattern pattern;
};

SpgemmPlan::SpgemmPlan() : data_(std::make_unique<Data>()) {}
SpgemmPlan::SpgemmPlan(std::unique_ptr<Data> data) : data_(std::move(data)) {}
SpgemmPlan::~SpgemmPlan() = default;
SpgemmPlan::SpgemmPlan(SpgemmPlan&&) noexcept = default;
SpgemmPlan& SpgemmPlan::operator=(SpgemmPlan&&) noexcept = default;

std::int64_t SpgemmPlan::rows() const { return data_->shape.m; }
std::int64_t SpgemmPlan::cols() const { return data_->shape.n; }
std::int64_t SpgemmPlan::block_rows() const { return data_->block.rows; }
std::int64_t SpgemmPlan::block_cols() const { return data_->block.cols; }
std::int64_t SpgemmPlan::stored_blocks() const {
  return static_cast<std::int64_t>(data_->pattern.columns.size());
}
std::int64_t SpgemmPlan::block_products() const {
  return static_cast<std::int64_t>(data_->pattern.left_blocks.size());
}
double SpgemmPlan::flops() const {
  return 2.0 * static_cast<double>(block_products()) * static_cast<double>(block_rows()) *
         static_cast<double>(block_cols()) * static_cast<double>(data_->inner);
}

namespace {

using core::Where;

struct Checked {
  Plan plan;
  planning::SpgemmShape shape;
};

Checked check_problem(const SpgemmProblem& problem, const Execution& execution) {
  Checked checked{plan(problem, execution), planning::shape_of(problem)};
  planning::check_data(problem, checked.shape);
  return checked;
}

planning::BlockShape result_block(const planning::SpgemmShape& shape) {
  const planning::OperandShape &a = shape.a, &b = shape.b;
  return {a.transposed ? a.block.cols : a.block.rows, b.transposed ? b.block.rows : b.block.cols};
}

/// `out` as a result of the problem: `stored` blocks where that is known, else as many as it has.
void check_out(const BsrMatrix& out, const planning::SpgemmShape& shape, std::int64_t stored) {
  const Where where = Where("spgemm") / "out";
  const planning::BlockShape block = result_block(shape);
  if (out.rows != shape.m || out.cols != shape.n) {
    core::refuse(where, core::words(shape.m, " x ", shape.n, " to match a and b"),
                 core::words(out.rows, " x ", out.cols));
  }
  const core::Dim values[] = {
      {"stored blocks", stored}, {"block rows", block.rows}, {"block cols", block.cols}};
  const core::Dim offsets[] = {{"rows of blocks + 1", shape.m / block.rows + 1}};
  core::check_output(where / "values", out.values, shape.device, values);
  const core::Dim columns[] = {{"stored blocks", out.values.size(0)}};
  core::check_list(where / "row_offsets", out.row_offsets, shape.device, offsets);
  core::check_list(where / "col_indices", out.col_indices, shape.device, columns);
  core::check_same_dtype(where / "col_indices", out.col_indices, out.row_offsets.dtype,
                         "row_offsets");
  core::check_no_alias(where / "row_offsets", out.row_offsets);
  core::check_no_alias(where / "col_indices", out.col_indices);
  core::check_pointers(where, out);
}

void write_list(const Tensor& to, const std::vector<std::int64_t>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t at = static_cast<std::int64_t>(i) * to.stride(0);
    if (to.dtype == DType::i64) {
      static_cast<std::int64_t*>(to.data)[at] = values[i];
    } else {
      static_cast<std::int32_t*>(to.data)[at] = static_cast<std::int32_t>(values[i]);
    }
  }
}

void run_numeric(const Plan& plan, const SpgemmProblem& problem, const planning::SpgemmShape& shape,
                 const cpu::SpgemmPattern& pattern, const BsrMatrix& out) {
  const api::OwnedBuffer workspace(plan.workspace_bytes);
  const planning::KernelRow& row =
      planning::kernel_table(plan.backend)[static_cast<std::size_t>(plan.kernel)];
  cpu::spgemm_numeric(problem, shape, pattern, out,
                      {row, workspace.view().data, nullptr, plan.threads});
}

}  // namespace

SpgemmPlan spgemm_symbolic(const SpgemmProblem& problem, const Execution& execution) {
  const Checked checked = check_problem(problem, execution);
  auto data = std::make_unique<SpgemmPlan::Data>();
  data->plan = checked.plan;
  data->shape = checked.shape;
  data->block = result_block(checked.shape);
  data->inner =
      checked.shape.a.transposed ? checked.shape.a.block.rows : checked.shape.a.block.cols;
  data->pattern = cpu::spgemm_symbolic(problem, checked.shape);
  return SpgemmPlan(std::move(data));
}

void spgemm_numeric(const SpgemmPlan& plan, const SpgemmProblem& problem, const BsrMatrix& out,
                    const Execution& execution) {
  const Checked checked = check_problem(problem, execution);
  const SpgemmPlan::Data& data = plan.data();
  if (checked.plan.signature != data.plan.signature) {
    throw Error(ErrorCode::invalid_argument, "spgemm: plan: made for '" + data.plan.signature +
                                                 "', the problem is '" + checked.plan.signature +
                                                 "'; call spgemm_symbolic for it");
  }
  check_out(out, checked.shape, plan.stored_blocks());
  constexpr std::int64_t kMostNarrow = INT32_MAX;
  if (out.row_offsets.dtype == DType::i32 &&
      std::max(plan.stored_blocks(), checked.shape.n) > kMostNarrow) {
    core::refuse(Where("spgemm") / "out" / "row_offsets", "i64 for this many blocks", "i32");
  }
  write_list(out.row_offsets, data.pattern.offsets);
  write_list(out.col_indices, data.pattern.columns);
  run_numeric(checked.plan, problem, checked.shape, data.pattern, out);
}

void spgemm_numeric(const SpgemmProblem& problem, const BsrMatrix& out,
                    const Execution& execution) {
  const Checked checked = check_problem(problem, execution);
  check_out(out, checked.shape, core::kAny);
  core::check_bsr_lists(Where("spgemm") / "out", out, true);
  run_numeric(checked.plan, problem, checked.shape,
              cpu::spgemm_sampled(problem, checked.shape, out), out);
}

}  // namespace tessera
