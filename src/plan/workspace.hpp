#pragma once

#include <cstdint>

#include "src/core/checked.hpp"
#include "src/plan/shape.hpp"
#include "src/plan/tile_table.hpp"

namespace tessera::planning {

inline constexpr std::int64_t kBufferAlignment = 128;

constexpr std::int64_t align_up(std::int64_t bytes, std::int64_t to = kBufferAlignment) {
  return (bytes + to - 1) / to * to;
}

/// Sub-buffers of one workspace, in order, each aligned. The same sequence of `add` calls on a null
/// base gives the total, and on the real one the pieces: arithmetic and use cannot drift apart.
class Carver {
 public:
  explicit constexpr Carver(void* base = nullptr) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* add(core::Size count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    const core::Size end = core::Size(used_) + count * sizeof(T) + kBufferAlignment;
    used_ = align_up(end.value() - kBufferAlignment);
    return piece;
  }
  constexpr std::int64_t used() const { return used_; }

 private:
  char* base_;
  std::int64_t used_ = 0;
};

/// The CPU backend's schedules begin with a mark that `prepare` writes and `run` looks for: what
/// lies in a buffer that was never prepared, or prepared for another plan, must not be taken for
/// lists.
struct ScheduleMark {
  std::uint64_t magic = 0, signature = 0;
};
inline constexpr std::int64_t kScheduleMarkBytes = kBufferAlignment;
static_assert(sizeof(ScheduleMark) <= kScheduleMarkBytes);

/// Scratch that `run` needs and the buffer that `prepare` fills, for one row and one shape.
struct BufferSizes {
  std::int64_t workspace = 0, schedule = 0;
};
BufferSizes buffer_sizes(const KernelRow& row, Op op, const AnyShape& shape, int threads);

}  // namespace tessera::planning
