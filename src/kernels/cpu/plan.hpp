#pragma once

#include <cstdint>

#include "src/kernels/family.hpp"

namespace tessera::planning {

KernelFamily cpu_matmul_family();
KernelFamily cpu_sddmm_family();
KernelFamily cpu_spgemm_family();
KernelFamily cpu_attention_family();
KernelFamily cpu_attention_backward_family();
KernelFamily cpu_merge_family();

/// A CPU schedule begins with a mark that `prepare` writes and `run` checks, so that a buffer that
/// was never prepared, or prepared for another plan, is not read as lists.
struct ScheduleMark {
  std::uint64_t magic = 0, plan = 0;
};
inline constexpr std::int64_t kScheduleMarkBytes = 128;
static_assert(sizeof(ScheduleMark) <= kScheduleMarkBytes);

}  // namespace tessera::planning
