#pragma once

#include <cstdint>

#include "src/core/carver.hpp"
#include "src/problem/shape.hpp"
#include "src/select/tile_table.hpp"

namespace tessera::planning {

/// The CPU backend's schedules begin with a mark that `prepare` writes and `run` looks for: what
/// lies in a buffer that was never prepared, or prepared for another plan, must not be taken for
/// lists.
struct ScheduleMark {
  std::uint64_t magic = 0, signature = 0;
};
inline constexpr std::int64_t kScheduleMarkBytes = core::kBufferAlignment;
static_assert(sizeof(ScheduleMark) <= kScheduleMarkBytes);

/// Scratch that `run` needs and the buffer that `prepare` fills, for one row and one shape.
struct BufferSizes {
  std::int64_t workspace = 0, schedule = 0;
};
BufferSizes buffer_sizes(const KernelRow& row, Op op, const AnyShape& shape, int threads);

}  // namespace tessera::planning
