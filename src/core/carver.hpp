#pragma once

#include <cstdint>

#include "src/core/checked.hpp"

namespace tessera::core {

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
  T* add(Size count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    const Size end = Size(used_) + count * sizeof(T) + kBufferAlignment;
    used_ = align_up(end.value() - kBufferAlignment);
    return piece;
  }
  constexpr std::int64_t used() const { return used_; }

 private:
  char* base_;
  std::int64_t used_ = 0;
};

}  // namespace tessera::core
