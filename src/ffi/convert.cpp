#include "src/ffi/convert.hpp"

#include <array>
#include <optional>

#include <dlpack/dlpack.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

namespace tessera::python {
namespace {

namespace ffi = tvm::ffi;

/// DType::none if the library has no such dtype.
DType dtype_of(const DLDataType& dtype) {
  struct Known {
    std::uint8_t code, bits;
    DType to;
  };
  static constexpr std::array kKnown{
      Known{kDLFloat, 32, DType::f32},
      Known{kDLFloat, 16, DType::f16},
      Known{kDLBfloat, 16, DType::bf16},
      Known{kDLInt, 32, DType::i32},
      Known{kDLInt, 64, DType::i64},
      Known{kDLUInt, 8, DType::u8},
      Known{kDLFloat8_e4m3fn, 8, DType::e4m3},
      Known{kDLFloat8_e5m2, 8, DType::e5m2},
      Known{kDLBool, 8, DType::u8},
  };
  if (dtype.lanes != 1) return DType::none;
  for (const Known& known : kKnown) {
    if (known.code == dtype.code && known.bits == dtype.bits) return known.to;
  }
  return DType::none;
}

std::string name_of(const DLDataType& dtype) {
  // tvm_ffi has no name for complex numbers.
  if (dtype.code == kDLComplex) return "complex" + std::to_string(dtype.bits);
  return std::string(ffi::DLDataTypeToString(dtype));
}

/// The Python name of an argument's type.
std::string type_of(const ffi::AnyView& any) {
  struct Known {
    const char* key;
    const char* name;
  };
  static constexpr std::array kKnown{
      Known{"ffi.Array", "list or tuple"},
      Known{"ffi.List", "list"},
      Known{"ffi.Map", "dict"},
      Known{"ffi.Dict", "dict"},
      Known{"ffi.SmallStr", "str"},
      Known{"ffi.String", "str"},
      Known{"ffi.SmallBytes", "bytes"},
      Known{"ffi.Bytes", "bytes"},
      Known{"ffi.Function", "function"},
  };
  std::string key = any.GetTypeKey();
  for (const Known& known : kKnown) {
    if (key == known.key) return known.name;
  }
  return key;
}

Tensor view_of(const Place& place, const DLTensor& from, const char* dtypes, Memory memory) {
  Tensor view;
  view.dtype = dtype_of(from.dtype);
  if (view.dtype == DType::none) {
    fail("TypeError", place,
         std::string("expected ") + dtypes + ", got " + name_of(from.dtype) + "; convert it first");
  }
  if (from.device.device_type == kDLCUDA) {
    view.device = {DeviceKind::cuda, from.device.device_id};
  } else if (from.device.device_type != kDLCPU && from.device.device_type != kDLCUDAHost) {
    fail("ValueError", place,
         "expected a tensor on the CPU or a CUDA device, got one on DLPack device type " +
             std::to_string(static_cast<int>(from.device.device_type)));
  }
  if (from.ndim > kMaxRank) {
    fail("ValueError", place,
         "expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
             std::to_string(from.ndim));
  }
  view.rank = from.ndim;
  for (int i = 0; i < from.ndim; ++i) {
    const auto at = static_cast<std::size_t>(i);
    view.shape[at] = from.shape[i];
    view.strides[at] = from.strides[i];
  }
  if (memory == Memory::read) view.data = static_cast<char*>(from.data) + from.byte_offset;
  return view;
}

}  // namespace

void fail(const char* kind, const Place& place, const std::string& message) {
  throw ffi::Error(kind, std::string(place.op) + ": " + place.name + ": " + message, "");
}

void refuse(const Place& place, const char* expected, const ffi::AnyView& got) {
  fail("TypeError", place, std::string("expected ") + expected + ", got " + type_of(got));
}

Tensor to_tensor(const Place& place, const ffi::AnyView& any, const char* dtypes, Memory memory) {
  if (any == nullptr) return {};
  const std::optional<DLTensor*> given = any.try_cast<DLTensor*>();
  if (!given) refuse(place, "a tensor or None", any);
  return view_of(place, **given, dtypes, memory);
}

Tensor to_rows(const Place& place, const ffi::AnyView& any, const char* dtypes, Memory memory) {
  const std::optional<DLTensor*> given = any.try_cast<DLTensor*>();
  if (!given || (*given)->ndim == 0 || (*given)->ndim == 2)
    return to_tensor(place, any, dtypes, memory);
  const DLTensor& from = **given;
  const std::int64_t inner = from.shape[from.ndim - 1];
  std::array<std::int64_t, 2> shape{1, inner}, strides{inner, from.strides[from.ndim - 1]};
  bool first = true;  // no leading dimension longer than 1 so far
  for (int i = from.ndim - 2; i >= 0; --i) {
    if (from.shape[i] == 1) continue;
    if (first) {
      strides[0] = from.strides[i];
    } else if (shape[0] != 0 && from.strides[i] != shape[0] * strides[0]) {
      fail("ValueError", place, "expected leading dimensions that flatten without a copy");
    }
    shape[0] *= from.shape[i];
    first = false;
  }
  DLTensor rows = from;
  rows.ndim = 2;
  rows.shape = shape.data();
  rows.strides = strides.data();
  return view_of(place, rows, dtypes, memory);
}

bool to_flag(const Place& place, const ffi::AnyView& any) {
  if (const auto value = any.try_cast<bool>()) return *value;
  refuse(place, "True or False", any);
}

std::int64_t to_integer(const Place& place, const ffi::AnyView& any) {
  // No conversions: a bool is not accepted as an integer.
  if (const auto value = any.as<std::int64_t>()) return *value;
  refuse(place, "an integer", any);
}

double to_number(const Place& place, const ffi::AnyView& any) {
  if (const auto value = any.try_cast<double>()) return *value;
  refuse(place, "a number", any);
}

std::string to_text(const Place& place, const ffi::AnyView& any) {
  if (const auto value = any.try_cast<ffi::String>()) return std::string(*value);
  refuse(place, "a string", any);
}

}  // namespace tessera::python
