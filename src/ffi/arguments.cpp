#include "src/ffi/arguments.hpp"

#include <utility>

#include <tvm/ffi/container/array.h>

namespace tessera::python {

namespace ffi = tvm::ffi;

Arguments::Arguments(const Signature& signature, const ffi::PackedArgs& args, Memory memory)
    : signature_(signature), args_(args), memory_(memory) {
  if (args.size() == signature.count) return;
  fail("TypeError", {signature.op, "arguments"},
       "expected " + std::to_string(signature.count) + ", got " + std::to_string(args.size()));
}

bool Arguments::has(const TensorArgument& argument) const { return at(argument.at) != nullptr; }

Tensor Arguments::read(const TensorArgument& argument) const {
  return to_tensor(place(argument), at(argument.at), argument.dtypes, memory_);
}

Tensor Arguments::read_rows(const TensorArgument& argument) const {
  return to_rows(place(argument), at(argument.at), argument.dtypes, memory_);
}

std::vector<Tensor> Arguments::read(const TensorsArgument& argument) const {
  const auto list = at(argument.at).try_cast<ffi::Array<ffi::Any>>();
  if (!list) refuse(place(argument), "a list of tensors", at(argument.at));
  std::vector<Tensor> tensors;
  tensors.reserve(list->size());
  for (const ffi::Any& any : *list)
    tensors.push_back(to_tensor(place(argument), any, argument.dtypes, memory_));
  return tensors;
}

bool Arguments::read(const FlagArgument& argument) const {
  return to_flag(place(argument), at(argument.at));
}

std::int64_t Arguments::read(const IntegerArgument& argument) const {
  return to_integer(place(argument), at(argument.at));
}

std::optional<std::int64_t> Arguments::read(const LimitArgument& argument) const {
  if (at(argument.at) == nullptr) return {};
  const std::int64_t limit = to_integer(place(argument), at(argument.at));
  return limit == -1 ? std::nullopt : std::optional(limit);
}

float Arguments::read(const NumberArgument& argument) const {
  return static_cast<float>(to_number(place(argument), at(argument.at)));
}

std::optional<float> Arguments::read(const OptionalNumberArgument& argument) const {
  if (at(argument.at) == nullptr) return {};
  return static_cast<float>(to_number(place(argument), at(argument.at)));
}

std::string Arguments::read(const TextArgument& argument) const {
  return to_text(place(argument), at(argument.at));
}

std::optional<std::string> Arguments::read(const OptionalTextArgument& argument) const {
  if (at(argument.at) == nullptr) return {};
  return to_text(place(argument), at(argument.at));
}

BsrMatrix Arguments::read(const BsrArguments& arguments) const {
  BsrMatrix matrix;
  matrix.values = read(arguments.values);
  matrix.row_offsets = read(arguments.row_offsets);
  matrix.col_indices = read(arguments.col_indices);
  matrix.rows = read(arguments.rows);
  matrix.cols = read(arguments.cols);
  return matrix;
}

Operand Arguments::read(const OperandArguments& arguments) const {
  Operand operand;
  if (has(arguments.row_offsets)) {
    operand.sparse = read(BsrArguments{arguments.values, arguments.row_offsets,
                                       arguments.col_indices, arguments.rows, arguments.cols});
  } else {
    operand.dense = read(arguments.values);
  }
  operand.transposed = read(arguments.transposed);
  operand.scale = read(arguments.scale);
  return operand;
}

BlockMask Arguments::read(const BlockMaskArguments& arguments) const {
  BlockMask mask;
  mask.block_q = read(arguments.block_q);
  mask.block_kv = read(arguments.block_kv);
  mask.full.counts = read(arguments.full_counts);
  mask.full.indices = read(arguments.full_indices);
  mask.partial.counts = read(arguments.partial_counts);
  mask.partial.indices = read(arguments.partial_indices);
  mask.bit_tile = read(arguments.bit_tile);
  mask.bits = read(arguments.bits);
  return mask;
}

Execution Arguments::read(const ExecutionArguments& arguments) const {
  Execution execution;
  execution.threads = static_cast<int>(read(arguments.threads));
  if (const auto name = read(arguments.backend)) execution.backend = parse_backend(*name);
  if (auto name = read(arguments.kernel)) execution.kernel = std::move(*name);
  return execution;
}

}  // namespace tessera::python
