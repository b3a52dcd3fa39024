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

/// Whether elements of `dtype` can be accessed as T. float stands for f32, 32-bit and 64-bit
/// integers for i32 and i64, and any 16-bit type for f16 and bf16. One-byte types and void can
/// access every dtype.
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

/// A contiguous tensor that owns its host memory, aligned to 64 bytes. It can be moved, not copied.
/// A moved-from or default-constructed HostTensor is absent.
class TESSERA_EXPORT HostTensor {
 public:
  HostTensor() = default;
  /// Allocates a tensor of zeros. Throws `Error` if `dtype` is `none`, the shape is invalid or the
  /// memory cannot be allocated.
  HostTensor(DType dtype, const std::vector<std::int64_t>& shape);
  HostTensor(HostTensor&& other) noexcept
      : storage_(std::move(other.storage_)), view_(std::exchange(other.view_, {})) {}
  HostTensor& operator=(HostTensor&& other) noexcept {
    storage_ = std::move(other.storage_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }

  /// The tensor as a non-owning view; valid as long as this object.
  const Tensor& view() const { return view_; }
  operator const Tensor&() const { return view_; }  // NOLINT: a HostTensor is usable as a Tensor
  /// Pointer to the first element, as T; null if the tensor is absent. Throws `Error` if T cannot
  /// access the dtype (`holds_elements_of`).
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

/// Reads element `index` of an array of `dtype` in host memory and converts it to float. It is slow
/// per element: use it for tests, file readers and small fills.
TESSERA_EXPORT float load_as_float(const void* data, DType dtype, std::int64_t index);
/// Converts `value` to `dtype`, rounding to nearest even, and writes it to element `index`. e4m3
/// and integers saturate.
TESSERA_EXPORT void store_from_float(void* data, DType dtype, std::int64_t index, float value);

}  // namespace tessera
