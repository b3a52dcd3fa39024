#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include <tessera/export.hpp>

namespace tessera {

/// Element type of a tensor. `none` marks an absent optional tensor.
///
/// The 8-bit floats are OCP's: e4m3 has 3 bits of mantissa, a largest value of 448, one NaN and no
/// infinity (float8_e4m3fn); e5m2 has 2 bits, a largest value of 57344, and infinities.
enum class DType : std::uint8_t { none, f32, f16, bf16, e4m3, e5m2, i32, i64, u8 };

/// The enumerator's name: "f32", "bf16", ...
TESSERA_EXPORT const char* to_string(DType dtype);
/// Bytes per element; 0 for `none`.
TESSERA_EXPORT int size_of(DType dtype);
/// Parses "f32", "f16", "bf16", "e4m3", "e5m2", "i32", "i64" or "u8". Throws `Error` for any other
/// name.
TESSERA_EXPORT DType parse_dtype(const std::string& name);

/// Where a tensor's memory is: host memory or a CUDA GPU.
enum class DeviceKind : std::uint8_t { cpu, cuda };

/// The host (`DeviceKind::cpu`) or one GPU, by its CUDA device index.
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  friend bool operator==(const Device&, const Device&) = default;
};

/// "cpu" or "cuda:0".
TESSERA_EXPORT std::string to_string(const Device& device);

/// The largest number of dimensions of a tensor.
inline constexpr int kMaxRank = 5;

/// A strided view of memory that the caller owns. Strides count elements. They may be zero or
/// negative; in an output, no two elements may share an address.
///
/// An output must not overlap any other tensor of its call, nor the workspace or the schedule: the
/// call throws `Error` if any byte is shared. Interleaved views whose elements are disjoint, such
/// as slices of one packed tensor or alternate columns, do not overlap. Operations that can run in
/// place say so (`Epilogue::c`, `MergeStatesProblem`).
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::none;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  /// True if the tensor is present. A present tensor may have no elements.
  explicit operator bool() const { return dtype != DType::none; }
  std::int64_t size(int dim) const { return shape[static_cast<std::size_t>(dim)]; }
  std::int64_t stride(int dim) const { return strides[static_cast<std::size_t>(dim)]; }
  /// Number of elements.
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= size(i);
    return n;
  }
};

/// Describes a tensor: "bf16[2, 128, 8, 64] on cpu". Strides are included if the tensor is not
/// contiguous.
TESSERA_EXPORT std::string to_string(const Tensor& tensor);

/// Makes a view of contiguous row-major memory. `data` may point to const memory for inputs: the
/// library never writes to a problem's inputs. Null is allowed for planning, which reads no data.
/// Throws `Error` if the shape has more than `kMaxRank` dimensions or a negative size.
TESSERA_EXPORT Tensor tensor(const void* data, DType dtype,
                             std::initializer_list<std::int64_t> shape, Device device = {});
/// Makes a view with the given strides, in elements, one per dimension.
TESSERA_EXPORT Tensor tensor(const void* data, DType dtype,
                             std::initializer_list<std::int64_t> shape,
                             std::initializer_list<std::int64_t> strides, Device device = {});

/// Returns the view with dimensions `i` and `j` exchanged; no data is moved. Throws `Error` if `i`
/// or `j` is not a dimension of the view.
TESSERA_EXPORT Tensor swap_dims(Tensor view, int i, int j);

}  // namespace tessera
