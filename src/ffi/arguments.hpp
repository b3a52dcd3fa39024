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

#include <tvm/ffi/function.h>

#include "src/ffi/convert.hpp"

// How src/ffi reads the arguments of an operation. The build writes a descriptor for each argument
// from python/tessera/_signatures.py: where the argument is, its name in messages and what it may
// hold. Its type decides how it is read, so that C++ states neither order nor names.
namespace tessera::python {

struct Signature {
  const char* op;
  int count;
};

struct TensorArgument {
  int at;
  const char* name;
  const char* dtypes;
};
struct TensorsArgument {
  int at;
  const char* name;
  const char* dtypes;
};
struct FlagArgument {
  int at;
  const char* name;
};
struct IntegerArgument {
  int at;
  const char* name;
};
/// None and FlashAttention's -1 are no limit.
struct LimitArgument {
  int at;
  const char* name;
};
struct NumberArgument {
  int at;
  const char* name;
};
struct OptionalNumberArgument {
  int at;
  const char* name;
};
struct TextArgument {
  int at;
  const char* name;
};
struct OptionalTextArgument {
  int at;
  const char* name;
};

struct BsrArguments {
  TensorArgument values, row_offsets, col_indices;
  IntegerArgument rows, cols;
};
/// A dense tensor, or a BSR matrix where row_offsets is given.
struct OperandArguments {
  TensorArgument values, row_offsets, col_indices;
  IntegerArgument rows, cols;
  FlagArgument transposed;
};
struct BlockMaskArguments {
  IntegerArgument block_q, block_kv;
  TensorArgument full_counts, full_indices, partial_counts, partial_indices, bit_tile, bits;
};
struct ExecutionArguments {
  IntegerArgument threads;
  OptionalTextArgument backend, kernel;
};
struct AttentionOptionsArguments {
  FlagArgument bhld;
  OptionalNumberArgument scale;
  NumberArgument softcap;
  FlagArgument causal;
  LimitArgument window_left, window_right;
  TensorArgument q_offsets, kv_offsets, kv_begin, kv_end, q_position, kv_position, page_table;
  IntegerArgument max_q_length, max_kv_length;
  TensorArgument sinks;
  BlockMaskArguments mask;
  ExecutionArguments execution;
};

/// The arguments of one call. An argument of the wrong kind is a TypeError that names it.
class Arguments {
 public:
  /// Throws where the number of arguments is not the signature's.
  Arguments(const Signature& signature, const tvm::ffi::PackedArgs& args, Memory memory);

  /// Absent where the argument is None.
  Tensor read(const TensorArgument& argument) const;
  /// [.., n] as [rows, n].
  Tensor read_rows(const TensorArgument& argument) const;
  std::vector<Tensor> read(const TensorsArgument& argument) const;
  bool read(const FlagArgument& argument) const;
  std::int64_t read(const IntegerArgument& argument) const;
  std::optional<std::int64_t> read(const LimitArgument& argument) const;
  float read(const NumberArgument& argument) const;
  std::optional<float> read(const OptionalNumberArgument& argument) const;
  std::string read(const TextArgument& argument) const;
  std::optional<std::string> read(const OptionalTextArgument& argument) const;
  BsrMatrix read(const BsrArguments& arguments) const;
  Operand read(const OperandArguments& arguments) const;
  BlockMask read(const BlockMaskArguments& arguments) const;
  Execution read(const ExecutionArguments& arguments) const;

  bool has(const TensorArgument& argument) const;

 private:
  tvm::ffi::AnyView at(int place) const { return args_[place]; }
  template <class Argument>
  Place place(const Argument& argument) const {
    return {signature_.op, argument.name};
  }

  const Signature& signature_;
  const tvm::ffi::PackedArgs& args_;
  Memory memory_;
};

}  // namespace tessera::python
