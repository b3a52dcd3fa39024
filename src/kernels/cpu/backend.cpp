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

ScheduleMark mark_of(const planning::Planned& planned, const void* a, const void* b) {
  constexpr std::uint64_t kMagic = 0x7465737365726131;  // "tessera1"
  std::string plan = planned.row->name + planning::describe(planned.shape);
  for (const auto& order : {planned.expansion.a, planned.expansion.b})
    plan += !order ? '-' : *order == planning::Order::rows ? 'r' : 'c';
  return {kMagic, std::hash<std::string>{}(plan), a, b};
}

/// The schedule after its mark; null if the plan has no schedule.
void* body_of(const Call& call) {
  if (call.planned.buffers.schedule == 0) return nullptr;
  return static_cast<char*>(call.schedule) + core::kScheduleMarkBytes;
}

}  // namespace

void mark_schedule(const planning::Planned& planned, void* schedule, const void* a, const void* b) {
  const ScheduleMark mark = mark_of(planned, a, b);
  std::memcpy(schedule, &mark, sizeof(mark));
}

void check_schedule(const planning::Planned& planned, const void* schedule, const void* a,
                    const void* b) {
  ScheduleMark found;
  std::memcpy(&found, schedule, sizeof(found));
  const ScheduleMark wanted = mark_of(planned, a, b);
  if (found == wanted) return;
  throw Error(ErrorCode::invalid_argument,
              std::string("execution: schedule: expected what prepare wrote for this plan, got ") +
                  (found.magic != wanted.magic ? "a buffer never prepared"
                   : found.plan != wanted.plan ? "another plan's"
                                               : "copies of other values; prepare again"));
}

void prepare(const Call& call) {
  visit_with_shape(call, [&](const auto& p, const auto& s) {
    if constexpr (requires { prepare(p, s, *call.planned.row, nullptr); })
      prepare(p, s, *call.planned.row, body_of(call));
  });
  mark_schedule(call.planned, call.schedule);
}

void launch(const Call& call) {
  if (call.planned.buffers.schedule > 0) check_schedule(call.planned, call.schedule);
  const Resources resources{*call.planned.row, call.workspace, body_of(call), call.planned.threads};
  visit_with_shape(call, [&](const auto& p, const auto& s) {
    if constexpr (requires { run(p, s, resources); }) run(p, s, resources);
  });
}

}  // namespace tessera::cpu
