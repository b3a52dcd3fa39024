#pragma once

#include <cstdint>
#include <string>

#include <tessera/tensor.hpp>

#include <tvm/ffi/any.h>

// Values of Python as those of the library. A value of the wrong kind is a TypeError that names the
// argument.
namespace tessera::python {

// The dtypes of an argument, as messages list them.
inline constexpr const char* kFloats = "float32, float16 or bfloat16";
inline constexpr const char* kInputs = "float32, float16, bfloat16 or, on a GPU, float8_e4m3fn";
inline constexpr const char* kIndices = "int32 or int64";
inline constexpr const char* kInt32 = "int32";
inline constexpr const char* kFloat32 = "float32";
inline constexpr const char* kBytes = "uint8";
inline constexpr const char* kBlocks = "bool or uint8";

/// The argument that a value came for.
struct Place {
  const char* op;
  const char* name;
};

/// Whether tensors come with their memory: planned for a device that need not be here, they may be
/// anywhere.
enum class Memory : std::uint8_t { read, ignored };

[[noreturn]] void fail(const char* kind, const Place& place, const std::string& message);
[[noreturn]] void refuse(const Place& place, const char* expected, const tvm::ffi::AnyView& got);

/// Absent where the value is None. `dtypes` is for the message that refuses a dtype which the
/// library does not know.
Tensor to_tensor(const Place& place, const tvm::ffi::AnyView& any, const char* dtypes,
                 Memory memory);
/// A tensor of any rank, [.., n], as [rows, n]: its leading dimensions have to lie as one.
Tensor to_rows(const Place& place, const tvm::ffi::AnyView& any, const char* dtypes, Memory memory);
bool to_flag(const Place& place, const tvm::ffi::AnyView& any);
std::int64_t to_integer(const Place& place, const tvm::ffi::AnyView& any);
double to_number(const Place& place, const tvm::ffi::AnyView& any);
std::string to_text(const Place& place, const tvm::ffi::AnyView& any);

}  // namespace tessera::python
