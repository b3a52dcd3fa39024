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

// Reads the arguments of an operation. The build generates a descriptor for each argument from
// python/tessera/_signatures.py: its position, its name in messages and its accepted dtypes. The
// descriptor's type determines how the argument is read, so that C++ code states neither the order
// nor the names.
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
/// A window width. None, and -1 as in FlashAttention, mean no limit.
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
/// A BSR matrix if row_offsets is given, else a dense tensor.
struct OperandArguments {
  TensorArgument values, row_offsets, col_indices;
  IntegerArgument rows, cols;
  FlagArgument transposed;
  TensorArgument scale;
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
  FlagArgument batch_invariant, deterministic;
  TensorArgument sinks, k_scale, v_scale, q_scale;
  BlockMaskArguments mask;
  ExecutionArguments execution;
};

/// The arguments of one call. An argument of the wrong type raises a TypeError with its name.
class Arguments {
 public:
  /// Throws if the number of arguments differs from the signature's.
  Arguments(const Signature& signature, const tvm::ffi::PackedArgs& args, Memory memory);

  /// None becomes an absent tensor.
  Tensor read(const TensorArgument& argument) const;
  /// Flattens [.., n] to [rows, n].
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

  /// Whether the argument is not None.
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
