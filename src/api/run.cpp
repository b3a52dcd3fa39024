#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <variant>

#include <tessera/error.hpp>
#include <tessera/plan.hpp>

#include "src/api/memory.hpp"
#include "src/kernels/cpu/backend.hpp"
#include "src/problem/check_memory.hpp"
#include "src/select/select.hpp"
#include "src/problem/shape.hpp"
#include "src/select/tile_table.hpp"
#include "src/select/workspace.hpp"
#if defined(TESSERA_CUDA)
#include "src/kernels/cuda/backend.hpp"
#include "src/kernels/cuda/prepare/clear_rest.hpp"
#include "src/kernels/cuda/ranges.hpp"
#endif

namespace tessera {
namespace {

using api::check_buffer;

/// visit(problem, its shape): the alternatives of both variants correspond by position.
template <class Visit>
void visit_with_shape(const AnyProblem& problem, const planning::AnyShape& shape,
                      const Visit& visit) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((problem.index() == I ? visit(std::get<I>(problem), std::get<I>(shape)) : void()), ...);
  }
  (std::make_index_sequence<std::variant_size_v<AnyProblem>>{});
}

Device device_of(const planning::AnyShape& shape) {
  return std::visit([](const auto& any) { return any.device; }, shape);
}

/// Refuses outputs and buffers of the caller that share memory with other tensors of the call.
void check_memory(const Plan& plan, const AnyProblem& problem, const Device& device,
                  const Execution& given) {
  core::Outputs outputs;
  const char* call = to_string(plan.op);
  api::add_buffer(outputs, call, "workspace", given.workspace, plan.workspace_bytes, device);
  api::add_buffer(outputs, call, "schedule", given.schedule, plan.schedule_bytes, device);
  std::visit([&](const auto& p) { planning::check_memory(p, outputs); }, problem);
}

/// Checks that a problem is the one planned for and that its data can be touched.
planning::AnyShape checked_shape(const Plan& plan, const AnyProblem& problem,
                                 const Execution& given) {
  planning::AnyShape shape = planning::shape_of(problem);
  const Op op = planning::op_of(problem);
  const std::string signature = planning::describe(op, shape);
  if (plan.signature != signature) {
    throw Error(ErrorCode::invalid_argument, "run: plan: made for '" + plan.signature +
                                                 "', the problem is '" + signature +
                                                 "'; plan again for it");
  }
  visit_with_shape(problem, shape,
                   [](const auto& p, const auto& s) { planning::check_data(p, s); });
  check_memory(plan, problem, device_of(shape), given);
  return shape;
}

const planning::KernelRow& row_of(const Plan& plan) {
  return planning::kernel_table(plan.backend)[static_cast<std::size_t>(plan.kernel)];
}

[[noreturn]] void refuse_spgemm() {
  throw Error(ErrorCode::unsupported,
              "spgemm: run: the result's size comes from data; use spgemm_symbolic and "
              "spgemm_numeric");
}

planning::ScheduleMark mark_of(const Plan& plan) {
  constexpr std::uint64_t kMagic = 0x7465737365726131;  // "tessera1"
  return {kMagic, std::hash<std::string>{}(plan.kernel_name + plan.signature)};
}

/// What follows the mark of a CPU schedule; null where the plan has none.
void* schedule_body(const Plan& plan, void* schedule) {
  return plan.schedule_bytes == 0 ? nullptr
                                  : static_cast<char*>(schedule) + planning::kScheduleMarkBytes;
}

void check_prepared(const Plan& plan, const void* schedule) {
  if (plan.schedule_bytes == 0) return;
  planning::ScheduleMark found;
  std::memcpy(&found, schedule, sizeof(found));
  const planning::ScheduleMark wanted = mark_of(plan);
  if (found.magic == wanted.magic && found.signature == wanted.signature) return;
  throw Error(ErrorCode::invalid_argument,
              std::string("execution: schedule: expected what prepare wrote for this plan, got ") +
                  (found.magic == wanted.magic ? "another plan's" : "a buffer never prepared"));
}

void prepare_on_cpu(const Plan& plan, const AnyProblem& problem, const planning::AnyShape& shape,
                    void* schedule) {
  visit_with_shape(problem, shape, [&](const auto& p, const auto& s) {
    if constexpr (requires { cpu::prepare(p, s, row_of(plan), schedule); })
      cpu::prepare(p, s, row_of(plan), schedule_body(plan, schedule));
  });
  const planning::ScheduleMark mark = mark_of(plan);
  std::memcpy(schedule, &mark, sizeof(mark));
}

void run_on_cpu(const Plan& plan, const AnyProblem& problem, const planning::AnyShape& shape,
                const Execution& execution) {
  check_prepared(plan, execution.schedule.data);
  const cpu::Resources resources{row_of(plan), execution.workspace.data,
                                 schedule_body(plan, execution.schedule.data), plan.threads};
  visit_with_shape(problem, shape, [&](const auto& p, const auto& s) {
    if constexpr (requires { cpu::run(p, s, resources); }) cpu::run(p, s, resources);
  });
}

#if !defined(TESSERA_CUDA)
[[noreturn]] void refuse_backend(const char* call, const Plan& plan) {
  throw Error(ErrorCode::unsupported, std::string(call) + ": plan: " + to_string(plan.backend) +
                                          " is not in this build; configure with TESSERA_CUDA=ON");
}
#endif

void run_checked(const Plan& plan, const AnyProblem& problem, const planning::AnyShape& shape,
                 const Execution& execution) {
  if (std::holds_alternative<SpgemmProblem>(problem)) refuse_spgemm();
  if (plan.backend == Backend::cpu) return run_on_cpu(plan, problem, shape, execution);
#if defined(TESSERA_CUDA)
  const cuda::Range range("run", plan);
  cuda::run(plan, problem, shape, execution);
  cuda::clear_rest(problem, execution.stream);
#else
  refuse_backend("run", plan);
#endif
}

void prepare_checked(const Plan& plan, const AnyProblem& problem, const planning::AnyShape& shape,
                     const Execution& execution) {
  if (plan.schedule_bytes == 0) return;
  check_buffer("schedule", execution.schedule, plan.schedule_bytes);
  if (plan.backend == Backend::cpu)
    return prepare_on_cpu(plan, problem, shape, execution.schedule.data);
#if defined(TESSERA_CUDA)
  const cuda::Range range("prepare", plan);
  cuda::prepare(plan, problem, shape, execution);
#else
  refuse_backend("prepare", plan);
#endif
}

/// A buffer that the caller brought, or one of the library's for the time of a call.
class Borrowed {
 public:
  Borrowed(const Buffer& given, std::int64_t bytes, const planning::AnyShape& shape, void* stream)
      : own_(given.data ? 0 : bytes, device_of(shape), stream),
        view_(given.data ? given : own_.view()) {}
  const Buffer& view() const { return view_; }

 private:
  api::OwnedBuffer own_;
  Buffer view_;
};

/// The convenience calls: plan, prepare, run, with what buffers the caller did not bring.
void execute(const AnyProblem& problem, const Execution& given) {
  const Plan made = plan(problem, given);
  const planning::AnyShape shape = checked_shape(made, problem, given);
  Execution execution = given;
  const Borrowed workspace(given.workspace, made.workspace_bytes, shape, given.stream);
  const Borrowed schedule(given.schedule, made.schedule_bytes, shape, given.stream);
  execution.workspace = workspace.view();
  execution.schedule = schedule.view();
  check_buffer("workspace", execution.workspace, made.workspace_bytes);
  prepare_checked(made, problem, shape, execution);
  run_checked(made, problem, shape, execution);
}

}  // namespace

void prepare(const Plan& plan, const AnyProblem& problem, const Execution& execution) {
  const planning::AnyShape shape = checked_shape(plan, problem, execution);
  prepare_checked(plan, problem, shape, execution);
}

void run(const Plan& plan, const AnyProblem& problem, const Execution& given) {
  const planning::AnyShape shape = checked_shape(plan, problem, given);
  check_buffer("schedule", given.schedule, plan.schedule_bytes);
  Execution execution = given;
  const Borrowed workspace(given.workspace, plan.workspace_bytes, shape, given.stream);
  execution.workspace = workspace.view();
  check_buffer("workspace", execution.workspace, plan.workspace_bytes);
  run_checked(plan, problem, shape, execution);
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
