#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <tessera/host_tensor.hpp>

#include "src/core/carver.hpp"
#include "src/kernels/cpu/backend.hpp"
#include "src/kernels/cpu/parallel.hpp"
#include "src/kernels/cpu/simd.hpp"
#include "src/problem/shape.hpp"

namespace tessera::cpu {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

/// Offset of (batch, row, head) in a tensor [batch, length, heads, dim] or [total, heads, dim].
std::int64_t row_offset(const Tensor& t, std::int64_t batch, std::int64_t row, std::int64_t head) {
  const std::int64_t base = row * t.stride(t.rank - 3) + head * t.stride(t.rank - 2);
  return t.rank == 4 ? base + batch * t.stride(0) : base;
}

/// The element (batch, head, row) of a tensor [batch, heads, length] or [heads, total].
float* lse_at(const Tensor& t, std::int64_t batch, std::int64_t row, std::int64_t head) {
  const std::int64_t base = head * t.stride(t.rank - 2) + row * t.stride(t.rank - 1);
  return static_cast<float*>(t.data) + (t.rank == 3 ? base + batch * t.stride(0) : base);
}

void* element(const Tensor& t, std::int64_t offset) {
  return static_cast<char*>(t.data) + offset * size_of(t.dtype);
}

}  // namespace

void run(const MergeStatesProblem& problem, const planning::MergeShape& shape,
         const Resources& resources) {
  const Simd& isa = simd();
  core::Carver carver(resources.workspace);
  std::vector<float*> rows, sums, weights;
  for (int i = 0; i < resources.threads; ++i) {
    rows.push_back(carver.add<float>(shape.dim));
    sums.push_back(carver.add<float>(shape.dim));
    weights.push_back(carver.add<float>(shape.parts));
  }
  const std::int64_t items = shape.batch * shape.length;
  parallel_for(resources.threads, items, [&](int thread, std::int64_t item) {
    const auto index = static_cast<std::size_t>(thread);
    float *row = rows[index], *sum = sums[index], *weight = weights[index];
    const std::int64_t batch = item / shape.length, at = item % shape.length;
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const float sink = problem.sinks ? load_as_float(problem.sinks.data, problem.sinks.dtype,
                                                       head * problem.sinks.stride(0))
                                       : kEmpty;
      float top = sink;
      for (std::size_t p = 0; p < problem.lses.size(); ++p) {
        weight[p] = *lse_at(problem.lses[p], batch, at, head);
        // Written so that a NaN becomes the maximum and propagates.
        if (!(weight[p] <= top)) top = weight[p];
      }
      const float base = top == kEmpty ? 0.0f : top;
      float total = std::exp(sink - base);
      for (std::size_t p = 0; p < problem.lses.size(); ++p) {
        weight[p] = std::exp(weight[p] - base);
        total += weight[p];
      }
      std::fill(sum, sum + shape.dim, 0.0f);
      for (std::size_t p = 0; p < problem.outs.size(); ++p) {
        if (weight[p] == 0.0f) continue;  // an empty part may hold anything
        const Tensor& part = problem.outs[p];
        isa.load(element(part, row_offset(part, batch, at, head)), part.dtype,
                 part.stride(part.rank - 1), shape.dim, row);
        const float share = weight[p] / total;
        for (std::int64_t d = 0; d < shape.dim; ++d) sum[d] += share * row[d];
      }
      const Tensor& out = problem.out;
      isa.store(sum, shape.dim, element(out, row_offset(out, batch, at, head)), out.dtype,
                out.stride(out.rank - 1));
      if (problem.lse)
        *lse_at(problem.lse, batch, at, head) = total == 0.0f ? kEmpty : base + std::log(total);
    }
  });
}

}  // namespace tessera::cpu
