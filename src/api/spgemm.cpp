#include <tessera/spgemm.hpp>

#include <algorithm>
#include <string>
#include <utility>

#include <tessera/error.hpp>
#include <tessera/plan.hpp>

#include "src/api/memory.hpp"
#include "src/api/planner.hpp"
#include "src/core/check_lists.hpp"
#include "src/kernels/cpu/backend.hpp"
#include "src/problem/check_memory.hpp"
#include "src/problem/describe.hpp"
#include "src/problem/shape.hpp"
#if defined(TESSERA_CUDA)
#include "src/kernels/cuda/backend.hpp"
#include "src/kernels/cuda/ranges.hpp"
#endif

namespace tessera {

struct SpgemmPlan::Data {
  std::shared_ptr<const planning::Planned> planned;
  planning::SpgemmShape shape;
  planning::BlockShape block;  // of the result
  std::int64_t inner = 0;      // depth of a block product
  std::int64_t stored = 0, products = 0;
  cpu::SpgemmPattern pattern;
#if defined(TESSERA_CUDA)
  cuda::SpgemmPattern on_device;  // used instead of `pattern` if the operands are on a GPU
#endif
};

SpgemmPlan::SpgemmPlan() : data_(std::make_unique<Data>()) {}
SpgemmPlan::SpgemmPlan(std::unique_ptr<Data> data) : data_(std::move(data)) {}
SpgemmPlan::~SpgemmPlan() = default;
SpgemmPlan::SpgemmPlan(SpgemmPlan&&) noexcept = default;
SpgemmPlan& SpgemmPlan::operator=(SpgemmPlan&&) noexcept = default;

const SpgemmPlan::Data& SpgemmPlan::data() const {
  // A moved-from plan reads as an empty one.
  static const Data empty;
  return data_ ? *data_ : empty;
}
std::int64_t SpgemmPlan::rows() const { return data().shape.m; }
std::int64_t SpgemmPlan::cols() const { return data().shape.n; }
std::int64_t SpgemmPlan::block_rows() const { return data().block.rows; }
std::int64_t SpgemmPlan::block_cols() const { return data().block.cols; }
std::int64_t SpgemmPlan::stored_blocks() const { return data().stored; }
std::int64_t SpgemmPlan::block_products() const { return data().products; }
double SpgemmPlan::flops() const {
  return 2.0 * static_cast<double>(block_products()) * static_cast<double>(block_rows()) *
         static_cast<double>(block_cols()) * static_cast<double>(data().inner);
}

namespace {

using core::Where;

struct Checked {
  planning::AnyShape any_shape;
  std::shared_ptr<const planning::Planned> planned;
  planning::SpgemmShape shape;

  Backend backend() const { return planned->family->backend; }
};

Checked check_problem(const SpgemmProblem& problem, const Execution& execution) {
  const planning::SpgemmShape shape = planning::shape_of(problem);
  Checked checked{shape, api::plan_for(shape, execution), shape};
  planning::check_data(problem, shape);
  return checked;
}

planning::BlockShape result_block(const planning::SpgemmShape& shape) {
  const planning::OperandShape &a = shape.a, &b = shape.b;
  return {a.transposed ? a.block.cols : a.block.rows, b.transposed ? b.block.rows : b.block.cols};
}

/// Checks `out` as the result of the problem. `stored`: its number of blocks, or kAny.
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

/// Whether the lists of the result are outputs or inputs of the call.
enum class Lists : std::uint8_t { written, given };

void check_memory(const Checked& checked, const SpgemmProblem& problem, const BsrMatrix& out,
                  Lists lists, const Execution& execution) {
  const Where where = Where("spgemm") / "out";
  core::Outputs outputs;
  api::add_buffer(outputs, "spgemm", "workspace", execution.workspace,
                  checked.planned->buffers.workspace, checked.shape.device);
  outputs.add(where / "values", out.values);
  if (lists == Lists::written) {
    outputs.add(where / "row_offsets", out.row_offsets);
    outputs.add(where / "col_indices", out.col_indices);
  } else {
    outputs.check_lists(where, out);
  }
  planning::check_memory(problem, outputs);
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

api::CallBuffer workspace_of(const Checked& checked, const Execution& execution) {
  return {"workspace", execution.workspace, checked.planned->buffers.workspace,
          checked.shape.device, execution};
}

void run_on_cpu(const Checked& checked, const SpgemmProblem& problem,
                const cpu::SpgemmPattern& pattern, const BsrMatrix& out,
                const Execution& execution) {
  const planning::Planned& planned = *checked.planned;
  const api::CallBuffer workspace = workspace_of(checked, execution);
  cpu::spgemm_numeric(problem, checked.shape, pattern, out,
                      {*planned.row, workspace.data(), nullptr, planned.threads});
}

/// Runs the problem if it is on a GPU, and returns whether it is. `data`: the plan; null if the
/// lists of the result are inputs.
bool run_on_gpu(const Checked& checked, const SpgemmProblem& problem, const SpgemmPlan::Data* data,
                const BsrMatrix& out, const Execution& given) {
  if (checked.backend() == Backend::cpu) return false;
  // Kernels count blocks and block rows in 32 bits; the limit leaves room for a step past the end.
  constexpr std::int64_t kMaxBlocks = INT32_MAX / 2;
  if (out.stored_blocks() + out.rows / out.block_rows() > kMaxBlocks) {
    core::refuse(Where("spgemm") / "out",
                 core::words("at most ", kMaxBlocks, " blocks and block rows on a GPU"),
                 core::words(out.stored_blocks(), " blocks"));
  }
#if defined(TESSERA_CUDA)
  const AnyProblem any(problem);
  const api::CallBuffer workspace = workspace_of(checked, given);
  const cuda::Range range("run", *checked.planned);
  const cuda::SpgemmResult result{out, data ? &data->on_device : nullptr};
  cuda::launch(
      {*checked.planned, any, checked.any_shape, workspace.data(), nullptr, given.stream, &result});
#else
  static_cast<void>(problem), static_cast<void>(data), static_cast<void>(out);
  static_cast<void>(given);
#endif
  return true;
}

}  // namespace

SpgemmPlan spgemm_symbolic(const SpgemmProblem& problem, const Execution& execution) {
  const Checked checked = check_problem(problem, execution);
  auto data = std::make_unique<SpgemmPlan::Data>();
  data->planned = checked.planned;
  data->shape = checked.shape;
  data->block = result_block(checked.shape);
  data->inner =
      checked.shape.a.transposed ? checked.shape.a.block.rows : checked.shape.a.block.cols;
  if (checked.backend() == Backend::cpu) {
    data->pattern = cpu::spgemm_symbolic(problem, checked.shape);
    data->stored = static_cast<std::int64_t>(data->pattern.columns.size());
    data->products = static_cast<std::int64_t>(data->pattern.left_blocks.size());
  }
#if defined(TESSERA_CUDA)
  if (checked.backend() != Backend::cpu) {
    const cuda::Range range("prepare", *checked.planned);
    data->on_device = cuda::spgemm_symbolic(problem, checked.shape, execution.stream);
    data->stored = data->on_device.stored;
    data->products = data->on_device.products;
  }
#endif
  return SpgemmPlan(std::move(data));
}

void spgemm_numeric(const SpgemmPlan& plan, const SpgemmProblem& problem, const BsrMatrix& out,
                    const Execution& execution) {
  const Checked checked = check_problem(problem, execution);
  const SpgemmPlan::Data& data = plan.data();
  if (!data.planned || checked.any_shape != data.planned->shape) {
    const std::string made = data.planned ? planning::describe(data.planned->shape) : "nothing";
    throw Error(ErrorCode::invalid_argument,
                "spgemm: plan: made for '" + made + "', the problem is '" +
                    planning::describe(checked.any_shape) + "'; call spgemm_symbolic for it");
  }
  if (checked.shape.device != data.shape.device) {
    core::refuse(Where("spgemm") / "plan",
                 "a plan made on " + to_string(checked.shape.device) + ", the device of a and b",
                 "a plan made on " + to_string(data.shape.device));
  }
  check_out(out, checked.shape, plan.stored_blocks());
  constexpr std::int64_t kMaxNarrow = INT32_MAX;
  if (out.row_offsets.dtype == DType::i32 &&
      std::max(plan.stored_blocks(), checked.shape.n) > kMaxNarrow) {
    core::refuse(Where("spgemm") / "out" / "row_offsets",
                 "dtype i64 for more than 2^31 - 1 blocks or columns", "i32");
  }
  check_memory(checked, problem, out, Lists::written, execution);
  if (run_on_gpu(checked, problem, &data, out, execution)) return;
  write_list(out.row_offsets, data.pattern.offsets);
  write_list(out.col_indices, data.pattern.columns);
  run_on_cpu(checked, problem, data.pattern, out, execution);
}

void spgemm_numeric(const SpgemmProblem& problem, const BsrMatrix& out,
                    const Execution& execution) {
  const Checked checked = check_problem(problem, execution);
  check_out(out, checked.shape, core::kAny);
  core::check_bsr_lists(Where("spgemm") / "out", out, true);
  check_memory(checked, problem, out, Lists::given, execution);
  if (run_on_gpu(checked, problem, nullptr, out, execution)) return;
  run_on_cpu(checked, problem, cpu::spgemm_sampled(problem, checked.shape, out), out, execution);
}

}  // namespace tessera
