#pragma once

#include <cstdint>

#include "src/core/checked.hpp"

namespace tessera::core {

inline constexpr std::int64_t kBufferAlignment = 128;
/// The piece at the beginning of a schedule in host memory in which `prepare` marks what it wrote.
inline constexpr std::int64_t kScheduleMarkBytes = kBufferAlignment;

constexpr std::int64_t align_up(std::int64_t bytes, std::int64_t to = kBufferAlignment) {
  return (bytes + to - 1) / to * to;
}

/// Divides one workspace into aligned sub-buffers. The same sequence of `add` calls yields the
/// total size with a null base, and the sub-buffers with a real one, so that planning and use
/// agree.
class Carver {
 public:
  explicit constexpr Carver(void* base = nullptr) : base_(static_cast<char*>(base)) {}
  /// The next sub-buffer, for `count` elements of T; null if the base is null.
  template <class T>
  T* add(Size count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    const Size end = Size(used_) + count * sizeof(T) + kBufferAlignment;
    used_ = align_up(end.value() - kBufferAlignment);
    return piece;
  }
  /// Bytes of all sub-buffers so far.
  constexpr std::int64_t used() const { return used_; }

 private:
  char* base_;
  std::int64_t used_ = 0;
};

}  // namespace tessera::core
