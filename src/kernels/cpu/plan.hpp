#pragma once

#include <cstdint>

#include "src/core/carver.hpp"
#include "src/kernels/family.hpp"

namespace tessera::planning {

KernelFamily cpu_matmul_family();
KernelFamily cpu_sddmm_family();
KernelFamily cpu_spgemm_family();
KernelFamily cpu_attention_family();
KernelFamily cpu_attention_backward_family();
KernelFamily cpu_merge_family();

/// A CPU schedule begins with a mark that `prepare` writes and `run` checks, so that a buffer that
/// was never prepared, or prepared for another plan, is not read as lists. With dense copies, it
/// has the addresses of the copied values.
struct ScheduleMark {
  std::uint64_t magic = 0, plan = 0;
  const void *a = nullptr, *b = nullptr;
  friend bool operator==(const ScheduleMark&, const ScheduleMark&) = default;
};
static_assert(sizeof(ScheduleMark) <= core::kScheduleMarkBytes);

}  // namespace tessera::planning
