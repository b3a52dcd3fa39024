#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

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
  template <class T>
  T* data() {
    return static_cast<T*>(view_.data);
  }
  template <class T>
  const T* data() const {
    return static_cast<const T*>(view_.data);
  }
  std::int64_t numel() const { return view_.numel(); }

 private:
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
