#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include <tessera/export.hpp>

namespace tessera {

/// Element types. `none` marks an absent optional tensor.
enum class DType : std::uint8_t { none, f32, f16, bf16, e4m3, i32, i64, u8 };

TESSERA_EXPORT const char* to_string(DType dtype);
/// Bytes of one element; 0 for `none`.
TESSERA_EXPORT int size_of(DType dtype);
/// Reads "f32", "f16", "bf16", "e4m3", "i32", "i64", "u8"; throws `Error` otherwise.
TESSERA_EXPORT DType parse_dtype(const std::string& name);

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

TESSERA_EXPORT std::string to_string(const Device& device);

inline constexpr int kMaxRank = 5;

/// A view of memory that the caller owns. Strides count elements and may be anything, zero and
/// negative included, as long as no two elements of an output share an address.
///
/// An output shares no byte with another tensor of its call, nor with a workspace or schedule;
/// a call with one that does is refused. Views that lie between each other's elements share
/// nothing: slices of one packed tensor, or alternate columns. Calls that may run in place say so
/// (`Epilogue::c`, `MergeStatesProblem`).
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::none;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  /// True where the tensor is present (it may still be empty).
  explicit operator bool() const { return dtype != DType::none; }
  std::int64_t size(int dim) const { return shape[static_cast<std::size_t>(dim)]; }
  std::int64_t stride(int dim) const { return strides[static_cast<std::size_t>(dim)]; }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= size(i);
    return n;
  }
};

/// "bf16[2, 128, 8, 64] on cpu", with strides where they are not the contiguous ones.
TESSERA_EXPORT std::string to_string(const Tensor& tensor);

/// A view of contiguous row-major memory. `data` may be const for inputs: the library never writes
/// through a tensor that a problem names as an input.
TESSERA_EXPORT Tensor tensor(const void* data, DType dtype,
                             std::initializer_list<std::int64_t> shape, Device device = {});
/// The same with strides, counted in elements.
TESSERA_EXPORT Tensor tensor(const void* data, DType dtype,
                             std::initializer_list<std::int64_t> shape,
                             std::initializer_list<std::int64_t> strides, Device device = {});

/// The same memory with two dimensions exchanged.
TESSERA_EXPORT Tensor swap_dims(Tensor view, int i, int j);

}  // namespace tessera
