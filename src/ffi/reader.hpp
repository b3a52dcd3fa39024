#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>
#include <tessera/execution.hpp>
#include <tessera/matmul.hpp>
#include <tessera/tensor.hpp>

#include <dlpack/dlpack.h>
#include <tvm/ffi/function.h>

namespace tessera::python {

// The dtypes of an argument, as messages list them.
inline constexpr const char* kFloats = "float32, float16 or bfloat16";
inline constexpr const char* kInputs = "float32, float16, bfloat16 or, on a GPU, float8_e4m3fn";
inline constexpr const char* kIndices = "int32 or int64";

/// Reads an exported function's arguments one after the other. An argument of the wrong kind is a
/// TypeError that names it.
class Reader {
 public:
  Reader(const char* op, const tvm::ffi::PackedArgs& args) : op_(op), args_(args) {}

  /// Absent where the argument is None. `dtypes` is for the message that refuses a dtype which the
  /// library does not know.
  Tensor tensor(const char* name, const char* dtypes);
  bool boolean(const char* name);
  std::int64_t integer(const char* name);
  double number(const char* name);
  std::string text(const char* name);
  std::optional<std::int64_t> optional_integer(const char* name);
  std::optional<float> optional_number(const char* name);
  std::optional<std::string> optional_text(const char* name);

  /// values (or a dense tensor where row_offsets is None), row_offsets, col_indices, rows, cols,
  /// transposed. Messages call a dense tensor `name`; `part` goes before the names of a sparse
  /// matrix's arrays: "a.".
  Operand operand(const char* name, const char* part);
  /// values, row_offsets, col_indices, rows, cols.
  BsrMatrix bsr(const char* part, const char* dtypes);
  /// counts, indices.
  BlockList block_list(const char* part);
  /// block_q, block_kv, full counts and indices, partial counts and indices, bit_tile, bits.
  BlockMask block_mask();
  /// threads, backend, kernel.
  Execution execution();

  /// Copies values, i64 or f32, into an argument of that type and of exactly their number.
  template <class T>
  void write(const char* name, const std::vector<T>& values);

  /// From here on tensors come without their memory: planned for a device, they may be anywhere.
  void drop_memory() { drop_memory_ = true; }

  /// The arguments that are left, read as those of another function.
  Reader rest(const char* op) const { return Reader(op, args_.Slice(next_)); }
  /// Throws where arguments are left: the two sides of the call disagree about its signature.
  void finish() const;

 private:
  tvm::ffi::AnyView take(const char* name);
  Tensor view(const char* name, const char* dtypes, const DLTensor& from) const;
  [[noreturn]] void fail(const char* kind, const char* name, const std::string& message) const;
  [[noreturn]] void refuse(const char* name, const char* expected,
                           const tvm::ffi::AnyView& got) const;

  const char* op_;
  const char* part_ = "";  // what the argument belongs to: "a.", "mask."
  tvm::ffi::PackedArgs args_;
  int next_ = 0;
  bool drop_memory_ = false;
};

}  // namespace tessera::python
