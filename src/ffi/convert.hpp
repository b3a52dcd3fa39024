#pragma once

#include <cstdint>
#include <string>

#include <tessera/tensor.hpp>

#include <tvm/ffi/any.h>

// Conversions from Python values to C++ ones. A value of the wrong type raises a TypeError with the
// name of the argument.
namespace tessera::python {

// The dtypes of an argument, as messages list them.
inline constexpr const char* kFloats = "float32, float16 or bfloat16";
inline constexpr const char* kInputs = "float32, float16, bfloat16, float8_e4m3fn or float8_e5m2";
inline constexpr const char* kKeys = "float32, float16, bfloat16 or float8_e4m3fn";
inline constexpr const char* kFp8 = "float8_e4m3fn or float8_e5m2";
inline constexpr const char* kIndices = "int32 or int64";
inline constexpr const char* kInt32 = "int32";
inline constexpr const char* kFloat32 = "float32";
inline constexpr const char* kBytes = "uint8";
inline constexpr const char* kBlocks = "bool or uint8";

/// An argument of an operation, for messages.
struct Place {
  const char* op;
  const char* name;
};

/// Whether to take the data pointers of tensors. They are ignored if the problem is explained for
/// another device.
enum class Memory : std::uint8_t { read, ignored };

/// Raises the Python exception `kind`: "op: argument: message".
[[noreturn]] void fail(const char* kind, const Place& place, const std::string& message);
/// Raises a TypeError: "op: argument: expected X, got TYPE".
[[noreturn]] void refuse(const Place& place, const char* expected, const tvm::ffi::AnyView& got);

/// Converts a tensor; None becomes an absent one. `dtypes` lists the accepted dtypes for the
/// message about a dtype that the library does not have.
Tensor to_tensor(const Place& place, const tvm::ffi::AnyView& any, const char* dtypes,
                 Memory memory);
/// Converts a tensor [.., n] of any rank to [rows, n]. The strides must allow to flatten the
/// leading dimensions without a copy.
Tensor to_rows(const Place& place, const tvm::ffi::AnyView& any, const char* dtypes, Memory memory);
bool to_flag(const Place& place, const tvm::ffi::AnyView& any);
std::int64_t to_integer(const Place& place, const tvm::ffi::AnyView& any);
double to_number(const Place& place, const tvm::ffi::AnyView& any);
std::string to_text(const Place& place, const tvm::ffi::AnyView& any);

}  // namespace tessera::python
