#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// Whether elements of a dtype may be read and written as T: float is f32, integers have the
/// dtype's size (16 bits: f16 and bf16), other types of 16 bits are f16 and bf16, bytes and void
/// are anything.
template <class T>
constexpr bool holds_elements_of(DType dtype) {
  if constexpr (std::is_void_v<T>) {  // NOLINT(bugprone-branch-clone): void has no size
    return true;
  } else if constexpr (sizeof(T) == 1) {
    return true;
  } else if constexpr (sizeof(T) == 2) {
    return dtype == DType::f16 || dtype == DType::bf16;
  } else if constexpr (std::is_integral_v<T>) {
    return dtype == (sizeof(T) == 4 ? DType::i32 : DType::i64);
  } else {
    return dtype == DType::f32 && std::is_same_v<std::remove_cv_t<T>, float>;
  }
}

/// A contiguous tensor in host memory that owns its storage: 64-byte aligned, zero-filled, movable.
/// One that was moved from is absent, like a default-constructed one.
class TESSERA_EXPORT HostTensor {
 public:
  HostTensor() = default;
  HostTensor(DType dtype, const std::vector<std::int64_t>& shape);
  HostTensor(HostTensor&& other) noexcept
      : storage_(std::move(other.storage_)), view_(std::exchange(other.view_, {})) {}
  HostTensor& operator=(HostTensor&& other) noexcept {
    storage_ = std::move(other.storage_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }

  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT: a HostTensor is usable as a Tensor
  /// The elements as T; throws `Error` where T does not hold elements of the dtype
  /// (`holds_elements_of`). Null where the tensor is absent.
  template <class T>
  T* data() {
    if constexpr (!std::is_void_v<T>)
      if (view_ && !holds_elements_of<T>(view_.dtype)) refuse_element_type(sizeof(T));
    return static_cast<T*>(view_.data);
  }
  template <class T>
  const T* data() const {
    return const_cast<HostTensor*>(this)->data<T>();
  }
  std::int64_t numel() const { return view_.numel(); }

 private:
  [[noreturn]] void refuse_element_type(std::size_t bytes) const;

  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> storage_;
  Tensor view_;
};

/// One element as float, and back with the dtype's rounding (nearest even). For tests, readers and
/// small fills, not for bulk work.
TESSERA_EXPORT float load_as_float(const void* data, DType dtype, std::int64_t index);
TESSERA_EXPORT void store_from_float(void* data, DType dtype, std::int64_t index, float value);

}  // namespace tessera
