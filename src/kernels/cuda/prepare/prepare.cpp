#include <variant>

#include "src/kernels/cuda/backend.hpp"
#include "src/kernels/cuda/prepare/convert.hpp"

namespace tessera::cuda {

void prepare(const planning::Call& call) {
  const auto* product = std::get_if<MatmulProblem>(&call.problem);
  if (!product) return;  // other operations need no schedule
  const auto& s = std::get<planning::MatmulShape>(call.shape);
  core::Carver carver(call.schedule);
  const planning::GpuMatmulSchedule schedule = planning::carve_gpu_matmul_schedule(carver, s);
  const auto write = [&](const BsrMatrix& matrix, const planning::GpuLists& lists) {
    if (!lists) return;
    transpose_lists(planning::view_of(matrix), planning::list_batches(matrix), lists,
                    {s.device.index, call.stream});
  };
  write(product->a.sparse, schedule.a);
  write(product->b.sparse, schedule.b);
}

}  // namespace tessera::cuda
