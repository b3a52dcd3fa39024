#include <initializer_list>
#include <string>
#include <utility>
#include <variant>

#include <tessera/error.hpp>
#include <tessera/plan.hpp>

#include "src/api/expand.hpp"
#include "src/api/memory.hpp"
#include "src/api/planner.hpp"
#include "src/problem/check_memory.hpp"
#include "src/problem/describe.hpp"
#include "src/problem/shape.hpp"
#if defined(TESSERA_CUDA)
#include "src/kernels/cuda/prepare/clear_rest.hpp"
#include "src/kernels/cuda/ranges.hpp"
#endif

namespace tessera {
namespace {

using api::CallBuffer;
using api::check_buffer;
using planning::AnyShape;
using planning::Call;
using planning::Planned;

/// Throws if outputs, or the caller's buffers, overlap other tensors of the call.
void check_memory(const Planned& planned, const AnyProblem& problem, const Device& device,
                  const Execution& given) {
  core::Outputs outputs;
  const char* call = to_string(planned.family->op);
  api::add_buffer(outputs, call, "workspace", given.workspace, planned.buffers.workspace, device);
  api::add_buffer(outputs, call, "schedule", given.schedule, planned.buffers.schedule, device);
  std::visit([&](const auto& p) { planning::check_memory(p, outputs); }, problem);
}

/// Checks pointers, lists in host memory and overlaps before a problem's data is used.
void check_data(const Planned& planned, const AnyProblem& problem, const AnyShape& shape,
                const Execution& given) {
  // The alternatives of both variants correspond by position.
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((problem.index() == I ? planning::check_data(std::get<I>(problem), std::get<I>(shape))
                           : void()),
     ...);
  }
  (std::make_index_sequence<std::variant_size_v<AnyProblem>>{});
  check_memory(planned, problem, planning::device_of(shape), given);
}

/// For prepare: replaces what follows from the addresses of tensors whose data is null, and from
/// the layout of results, by what was planned.
void take_alignment(AnyShape& shape, const AnyProblem& problem, const AnyShape& planned) {
  if (shape.index() != planned.index()) return;
  const auto products = [&]<class Shape>(const auto& p, Shape& made) {
    const Shape& wanted = std::get<Shape>(planned);
    if (!p.a.is_sparse() && !p.a.dense.data) made.a.tma_readable = wanted.a.tma_readable;
    if (!p.b.is_sparse() && !p.b.dense.data) made.b.tma_readable = wanted.b.tma_readable;
  };
  if (const auto* product = std::get_if<MatmulProblem>(&problem)) {
    products(*product, std::get<planning::MatmulShape>(shape));
  } else if (const auto* sampled = std::get_if<SddmmProblem>(&problem)) {
    auto& made = std::get<planning::SddmmShape>(shape);
    products(*sampled, made);
    const auto& wanted = std::get<planning::SddmmShape>(planned);
    made.pooled = wanted.pooled;
    made.out.tma_readable = wanted.out.tma_readable;
    made.out.unit_row_stride = wanted.out.unit_row_stride;
    made.out.unit_col_stride = wanted.out.unit_col_stride;
    made.out.pool_fits = wanted.out.pool_fits;
  } else if (const auto* attention = std::get_if<AttentionProblem>(&problem)) {
    auto& made = std::get<planning::AttentionShape>(shape);
    const auto& wanted = std::get<planning::AttentionShape>(planned);
    if (!attention->q.data || !attention->k.data || !attention->v.data) {
      made.tma_readable = wanted.tma_readable;
      made.v_by_keys = wanted.v_by_keys;
    }
  } else if (const auto* backward = std::get_if<AttentionBackwardProblem>(&problem)) {
    const AttentionProblem& forward = backward->forward;
    auto& made = std::get<planning::AttentionBackwardShape>(shape);
    const auto& wanted = std::get<planning::AttentionBackwardShape>(planned);
    if (!forward.q.data || !forward.k.data || !forward.v.data)
      made.tma_readable = wanted.tma_readable;
    if (!backward->dout.data) made.dout_readable = wanted.dout_readable;
  }
}

enum class Data { complete, may_be_null };

/// The shape of a problem. Throws if it is not the planned one.
AnyShape shape_planned_for(const Plan& plan, const AnyProblem& problem,
                           Data data = Data::complete) {
  if (!plan.planned)
    throw Error(ErrorCode::invalid_argument,
                "run: plan: expected the result of plan(), got an empty plan");
  AnyShape shape = planning::shape_of(problem);
  if (data == Data::may_be_null) take_alignment(shape, problem, plan.planned->shape);
  if (shape == plan.planned->shape) return shape;
  auto* const product = std::get_if<planning::MatmulShape>(&shape);
  if (product && !plan.planned->family->depends_on_blas) {
    const auto blas = product->blas;
    const auto* const planned = std::get_if<planning::MatmulShape>(&plan.planned->shape);
    if (planned) product->blas = planned->blas;
    if (shape == plan.planned->shape) return shape;
    product->blas = blas;
  }
  throw Error(ErrorCode::invalid_argument, "run: plan: made for '" + plan.signature +
                                               "', the problem is '" + planning::describe(shape) +
                                               "'; plan again for it");
}

void refuse_spgemm(const AnyProblem& problem) {
  if (!std::holds_alternative<SpgemmProblem>(problem)) return;
  throw Error(ErrorCode::unsupported,
              "spgemm: run: the result's size comes from data; use spgemm_symbolic and "
              "spgemm_numeric");
}

/// Calls a family's prepare or launch function. Throws if its backend is not in this build.
using Step = void (*)(const Call&);
void take(Step step, const char* name, const Call& call) {
  const Backend backend = call.planned.family->backend;
  if (!step) {
    throw Error(ErrorCode::unsupported,
                std::string(name) + ": plan: " + to_string(backend) +
                    " is not in this build; configure with TESSERA_CUDA=ON");
  }
#if defined(TESSERA_CUDA)
  if (backend != Backend::cpu) {
    const cuda::Range range(name, call.planned);
    return step(call);
  }
#endif
  step(call);
}

/// Writes the schedule of a plan that has one.
void write_schedule(const Call& call) {
  if (!call.planned.dense) return take(call.planned.family->prepare, "prepare", call);
  const api::ExpandedCall expanded(call);
  expanded.write_copies();
  const Call dense = expanded.dense();
  if (dense.planned.buffers.schedule > 0) write_schedule(dense);
  expanded.mark();
}

/// Launches with the caller's workspace; without one, allocates what the call uses.
void launch(Call call, const Execution& given) {
  if (call.planned.dense) {
    const api::ExpandedCall expanded(call);
    expanded.check();
    return launch(expanded.dense(), given);
  }
  const planning::KernelFamily& family = *call.planned.family;
  std::int64_t bytes = call.planned.buffers.workspace;
  if (family.workspace && !given.workspace.data) bytes = family.workspace(call);
  const CallBuffer workspace("workspace", given.workspace, bytes, planning::device_of(call.shape),
                             given);
  call.workspace = workspace.data();
  take(family.launch, "run", call);
#if defined(TESSERA_CUDA)
  if (family.backend != Backend::cpu && !family.clears_rest)
    cuda::clear_rest(call.problem, call.stream);
#endif
}

/// Removes tensors with null data from a problem, as `prepare` reads no dense operand or result.
void drop_null(std::initializer_list<Tensor*> tensors) {
  for (Tensor* tensor : tensors)
    if (!tensor->data) *tensor = {};
}
void drop_null(MatmulProblem& p) {
  drop_null({&p.a.dense, &p.b.dense, &p.out, &p.epilogue.c, &p.epilogue.bias});
}
void drop_null(SddmmProblem& p) { drop_null({&p.a.dense, &p.b.dense}); }
void drop_null(SpgemmProblem&) {}
void drop_null(AttentionProblem& p) { drop_null({&p.q, &p.k, &p.v, &p.out, &p.lse, &p.sinks}); }
void drop_null(AttentionBackwardProblem& p) {
  drop_null(p.forward);
  drop_null({&p.dout, &p.dlse, &p.dq, &p.dk, &p.dv, &p.dsinks});
}
void drop_null(MergeStatesProblem&) {}

/// Plans, prepares and runs a problem, and allocates the buffers that the caller did not give.
void execute(const AnyProblem& problem, const Execution& given) {
  const AnyShape shape = planning::shape_of(problem);
  const std::shared_ptr<const Planned> planned = api::plan_for(shape, given);
  check_data(*planned, problem, shape, given);
  const std::int64_t bytes = planned->buffers.schedule;
  const CallBuffer schedule("schedule", given.schedule, bytes, planning::device_of(shape), given);
  const Call call{*planned, problem, shape, nullptr, schedule.data(), given.stream};
  if (bytes > 0) write_schedule(call);
  launch(call, given);
}

}  // namespace

void prepare(const Plan& plan, const AnyProblem& problem, const Execution& given) {
  const AnyShape shape = shape_planned_for(plan, problem, Data::may_be_null);
  const Planned& planned = *plan.planned;
  AnyProblem lists = problem;
  std::visit([](auto& p) { drop_null(p); }, lists);
  check_data(planned, lists, shape, given);
  if (planned.buffers.schedule == 0) return;
  check_buffer("schedule", given.schedule, planned.buffers.schedule);
  write_schedule({planned, problem, shape, nullptr, given.schedule.data, given.stream});
}

void run(const Plan& plan, const AnyProblem& problem, const Execution& given) {
  const AnyShape shape = shape_planned_for(plan, problem);
  const Planned& planned = *plan.planned;
  check_data(planned, problem, shape, given);
  refuse_spgemm(problem);
  check_buffer("schedule", given.schedule, planned.buffers.schedule);
  launch({planned, problem, shape, nullptr, given.schedule.data, given.stream}, given);
}

void run(const AnyProblem& problem, const Execution& execution) {
  refuse_spgemm(problem);
  execute(problem, execution);
}

void matmul(const MatmulProblem& problem, const Execution& execution) {
  execute(problem, execution);
}

void sddmm(const SddmmProblem& problem, const Execution& execution) { execute(problem, execution); }

void attention(const AttentionProblem& problem, const Execution& execution) {
  execute(problem, execution);
}

void attention_backward(const AttentionBackwardProblem& problem, const Execution& execution) {
  execute(problem, execution);
}

void merge_states(const MergeStatesProblem& problem, const Execution& execution) {
  execute(problem, execution);
}

}  // namespace tessera
