#include "src/core/carver.hpp"
#include "src/select/workspace.hpp"

#include "src/kernels/cpu/layout.hpp"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/walk/transposed_lists.hpp"

namespace tessera::planning {
namespace {

std::int64_t product_bytes(const KernelRow& row, std::int64_t packed, int threads) {
  core::Carver carver;
  carver.add<float>(packed);
  for (int i = 0; i < threads; ++i) carve_product_scratch(carver, row.tile);
  return carver.used();
}

std::int64_t attention_bytes(const KernelRow& row, const AttentionShape& s, int threads,
                             bool backward) {
  core::Carver carver;
  if (backward) carver.add<float>(Size(s.heads) * s.q_total);
  for (int i = 0; i < threads; ++i) carve_attention_scratch(carver, s, row.tile, backward);
  return carver.used();
}

BufferSizes cpu_sizes(const KernelRow& row, Op op, const AnyShape& shape, int threads) {
  core::Carver schedule;
  switch (op) {
    case Op::matmul: {
      const auto& s = std::get<static_cast<int>(Op::matmul)>(shape);
      const ProductSides sides = product_sides(s);
      carve_matmul_schedule(schedule, s);
      return {
          product_bytes(row, packed_floats(sides.right_rows, sides.right_cols, s.batch), threads),
          schedule.used()};
    }
    case Op::sddmm:
      return {
          product_bytes(row, sampled_packed_floats(std::get<static_cast<int>(Op::sddmm)>(shape)),
                        threads),
          0};
    case Op::spgemm:
      return {
          product_bytes(row, pool_packed_floats(std::get<static_cast<int>(Op::spgemm)>(shape).b),
                        threads),
          0};
    case Op::attention: {
      const auto& s = std::get<static_cast<int>(Op::attention)>(shape);
      carve_attention_schedule(schedule, s, row.tile, false);
      return {attention_bytes(row, s, threads, false), schedule.used()};
    }
    case Op::attention_backward: {
      const auto& s = std::get<static_cast<int>(Op::attention_backward)>(shape);
      carve_attention_schedule(schedule, s, row.tile, true);
      return {attention_bytes(row, s, threads, true), schedule.used()};
    }
    case Op::merge_states: {
      const auto& s = std::get<static_cast<int>(Op::merge_states)>(shape);
      core::Carver carver;
      for (int i = 0; i < threads; ++i) {
        carver.add<float>(s.dim);
        carver.add<float>(s.dim);
        carver.add<float>(s.parts);
      }
      return {carver.used(), 0};
    }
  }
  return {};
}

/// GPU rows keep what they need in registers and shared memory; lists that are walked against their
/// storage are transposed first.
BufferSizes gpu_sizes(const KernelRow& row, Op op, const AnyShape& shape) {
  if (op == Op::spgemm) {
    const auto& s = std::get<static_cast<int>(Op::spgemm)>(shape);
    core::Carver carver;
    if (s.a.transposed) carve_gpu_lists(carver, s.a);
    return {carver.used(), 0};
  }
  if (row.family() == "attention") {
    const auto& s = std::get<static_cast<int>(Op::attention)>(shape);
    core::Carver carver;
    carve_attention_scratch(carver, row.tile, attention_layout(s, row.tile));
    return {carver.used(), 0};
  }
  if (row.family() == "matmul") {
    const auto& s = std::get<static_cast<int>(Op::matmul)>(shape);
    core::Carver carver;
    carve_matmul_scratch(carver, s, matmul_layout(s, row.tile));
    return {carver.used(), 0};
  }
  if (row.family() != "bsr" || op != Op::matmul) return {};
  return {0, gpu_matmul_schedule_bytes(std::get<static_cast<int>(Op::matmul)>(shape))};
}

}  // namespace

BufferSizes buffer_sizes(const KernelRow& row, Op op, const AnyShape& shape, int threads) {
  if (row.backend != Backend::cpu) return gpu_sizes(row, op, shape);
  BufferSizes sizes = cpu_sizes(row, op, shape, threads);
  if (sizes.schedule > 0) sizes.schedule += kScheduleMarkBytes;
  return sizes;
}

}  // namespace tessera::planning
