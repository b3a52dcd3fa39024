#include "src/kernels/cpu/backend.hpp"

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include <tessera/error.hpp>

#include "src/kernels/cpu/plan.hpp"
#include "src/problem/describe.hpp"

namespace tessera::cpu {
namespace {

using planning::Call;
using planning::ScheduleMark;

/// Calls visit(problem, shape); the alternatives of both variants correspond by index.
template <class Visit>
void visit_with_shape(const Call& call, const Visit& visit) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((call.problem.index() == I ? visit(std::get<I>(call.problem), std::get<I>(call.shape))
                                : void()),
     ...);
  }
  (std::make_index_sequence<std::variant_size_v<AnyProblem>>{});
}

ScheduleMark mark_of(const planning::Planned& planned) {
  constexpr std::uint64_t kMagic = 0x7465737365726131;  // "tessera1"
  return {kMagic, std::hash<std::string>{}(planned.row->name + planning::describe(planned.shape))};
}

/// The schedule after its mark; null if the plan has no schedule.
void* body_of(const Call& call) {
  if (call.planned.buffers.schedule == 0) return nullptr;
  return static_cast<char*>(call.schedule) + planning::kScheduleMarkBytes;
}

void check_prepared(const Call& call) {
  if (call.planned.buffers.schedule == 0) return;
  ScheduleMark found;
  std::memcpy(&found, call.schedule, sizeof(found));
  const ScheduleMark wanted = mark_of(call.planned);
  if (found.magic == wanted.magic && found.plan == wanted.plan) return;
  throw Error(ErrorCode::invalid_argument,
              std::string("execution: schedule: expected what prepare wrote for this plan, got ") +
                  (found.magic == wanted.magic ? "another plan's" : "a buffer never prepared"));
}

}  // namespace

void prepare(const Call& call) {
  visit_with_shape(call, [&](const auto& p, const auto& s) {
    if constexpr (requires { prepare(p, s, *call.planned.row, nullptr); })
      prepare(p, s, *call.planned.row, body_of(call));
  });
  const ScheduleMark mark = mark_of(call.planned);
  std::memcpy(call.schedule, &mark, sizeof(mark));
}

void launch(const Call& call) {
  check_prepared(call);
  const Resources resources{*call.planned.row, call.workspace, body_of(call), call.planned.threads};
  visit_with_shape(call, [&](const auto& p, const auto& s) {
    if constexpr (requires { run(p, s, resources); }) run(p, s, resources);
  });
}

}  // namespace tessera::cpu
