#include "src/api/expand.hpp"

#include <tessera/error.hpp>

#include "src/api/conversions.hpp"
#include "src/kernels/cpu/backend.hpp"
#include "src/problem/describe.hpp"

namespace tessera::api {

using planning::MatmulShape;

namespace {

planning::ExpandedSchedule schedule_of(const planning::Call& call) {
  core::Carver carver(call.schedule);
  return carve_expanded(carver, std::get<MatmulShape>(call.shape), call.planned.expansion,
                        call.planned.dense->buffers.schedule);
}

const MatmulProblem& product_of(const AnyProblem& problem) {
  return std::get<MatmulProblem>(problem);
}

}  // namespace

ExpandedCall::ExpandedCall(const planning::Call& given)
    : given_(given), schedule_(schedule_of(given)) {
  const auto& shape = std::get<MatmulShape>(given.shape);
  const planning::Expansion& expansion = given.planned.expansion;
  const MatmulProblem expanded =
      expanded_problem(product_of(given.problem), shape, expansion, schedule_);
  shape_ = expanded_shape(expanded, shape, expansion);
  problem_ = expanded;
}

planning::Call ExpandedCall::dense() const {
  return {*given_.planned.dense, problem_,        shape_,
          given_.workspace,      schedule_.dense, given_.stream};
}

void ExpandedCall::write_copies() const {
  const MatmulProblem& from = product_of(given_.problem);
  const MatmulProblem& to = product_of(problem_);
  const auto& shape = std::get<MatmulShape>(given_.shape);
  const auto write = [&](const Operand& sparse, const Operand& dense, std::int64_t batch) {
    if (!sparse.is_sparse() || dense.is_sparse()) return;
    to_dense("prepare", planning::block_copy(sparse.sparse, dense.dense, batch), shape.device,
             {.stream = given_.stream});
  };
  write(from.a, to.a, shape.a.batch);
  write(from.b, to.b, shape.b.batch);
}

void ExpandedCall::mark() const {
  const MatmulProblem& p = product_of(given_.problem);
  if (planning::device_of(given_.shape).kind == DeviceKind::cpu)
    cpu::mark_schedule(given_.planned, schedule_.mark, p.a.sparse.values.data,
                       p.b.sparse.values.data);
}

void ExpandedCall::check() const {
  const planning::Planned& planned = *given_.planned.dense;
  const auto& wanted = std::get<MatmulShape>(planned.shape);
  if (planned.family->depends_on_blas && std::get<MatmulShape>(shape_).blas != wanted.blas) {
    throw Error(ErrorCode::invalid_argument,
                "run: plan: made for '" + planning::describe(planned.shape) +
                    "' with a dense copy, the problem is '" + planning::describe(shape_) +
                    "'; plan again for it");
  }
  const MatmulProblem& p = product_of(given_.problem);
  if (planning::device_of(given_.shape).kind == DeviceKind::cpu)
    cpu::check_schedule(given_.planned, schedule_.mark, p.a.sparse.values.data,
                        p.b.sparse.values.data);
}

}  // namespace tessera::api
