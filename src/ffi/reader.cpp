#include "src/ffi/reader.hpp"

#include <array>
#include <type_traits>
#include <utility>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/string.h>

namespace tessera::python {
namespace {

namespace ffi = tvm::ffi;

/// DType::none where the library has no such type.
DType dtype_of(const DLDataType& dtype) {
  struct Known {
    std::uint8_t code, bits;
    DType to;
  };
  static constexpr std::array kKnown{
      Known{kDLFloat, 32, DType::f32},         Known{kDLFloat, 16, DType::f16},
      Known{kDLBfloat, 16, DType::bf16},       Known{kDLInt, 32, DType::i32},
      Known{kDLInt, 64, DType::i64},           Known{kDLUInt, 8, DType::u8},
      Known{kDLFloat8_e4m3fn, 8, DType::e4m3}, Known{kDLBool, 8, DType::u8},
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

/// What Python calls the type of an argument.
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
  const std::string key = any.GetTypeKey();
  for (const Known& known : kKnown) {
    if (key == known.key) return known.name;
  }
  return key;
}

}  // namespace

ffi::AnyView Reader::take(const char* name) {
  if (next_ >= args_.size())
    fail("TypeError", name, "missing, only " + std::to_string(args_.size()) + " arguments came");
  return args_[next_++];
}

void Reader::fail(const char* kind, const char* name, const std::string& message) const {
  throw ffi::Error(kind, std::string(op_) + ": " + part_ + name + ": " + message, "");
}

void Reader::refuse(const char* name, const char* expected, const ffi::AnyView& got) const {
  fail("TypeError", name, std::string("expected ") + expected + ", got " + type_of(got));
}

void Reader::finish() const {
  if (next_ == args_.size()) return;
  fail("TypeError", "arguments",
       "expected " + std::to_string(next_) + ", got " + std::to_string(args_.size()));
}

Tensor Reader::view(const char* name, const char* dtypes, const DLTensor& from) const {
  Tensor view;
  view.dtype = dtype_of(from.dtype);
  if (view.dtype == DType::none) {
    fail("TypeError", name,
         std::string("expected ") + dtypes + ", got " + name_of(from.dtype) + "; convert it first");
  }
  if (from.device.device_type == kDLCUDA) {
    view.device = {DeviceKind::cuda, from.device.device_id};
  } else if (from.device.device_type != kDLCPU && from.device.device_type != kDLCUDAHost) {
    fail("ValueError", name,
         "expected a tensor on the CPU or a CUDA device, got one on DLPack device type " +
             std::to_string(static_cast<int>(from.device.device_type)));
  }
  if (from.ndim > kMaxRank) {
    fail("ValueError", name,
         "expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
             std::to_string(from.ndim));
  }
  view.rank = from.ndim;
  for (int i = 0; i < from.ndim; ++i) {
    const auto at = static_cast<std::size_t>(i);
    view.shape[at] = from.shape[i];
    view.strides[at] = from.strides[i];
  }
  if (!drop_memory_) view.data = static_cast<char*>(from.data) + from.byte_offset;
  return view;
}

Tensor Reader::tensor(const char* name, const char* dtypes) {
  const ffi::AnyView any = take(name);
  if (any == nullptr) return {};
  const std::optional<DLTensor*> given = any.try_cast<DLTensor*>();
  if (!given) refuse(name, "a tensor or None", any);
  return view(name, dtypes, **given);
}

bool Reader::boolean(const char* name) {
  const ffi::AnyView any = take(name);
  if (const auto value = any.try_cast<bool>()) return *value;
  refuse(name, "True or False", any);
}

std::int64_t Reader::integer(const char* name) {
  if (const auto value = optional_integer(name)) return *value;
  refuse(name, "an integer", nullptr);
}

double Reader::number(const char* name) {
  const ffi::AnyView any = take(name);
  if (const auto value = any.try_cast<double>()) return *value;
  refuse(name, "a number", any);
}

std::string Reader::text(const char* name) {
  if (auto value = optional_text(name)) return *value;
  refuse(name, "a string", nullptr);
}

std::optional<std::int64_t> Reader::optional_integer(const char* name) {
  const ffi::AnyView any = take(name);
  if (any == nullptr) return {};
  // A bool is no count, so nothing is converted.
  if (const auto value = any.as<std::int64_t>()) return *value;
  refuse(name, "an integer", any);
}

std::optional<float> Reader::optional_number(const char* name) {
  const ffi::AnyView any = take(name);
  if (any == nullptr) return {};
  if (const auto value = any.try_cast<double>()) return static_cast<float>(*value);
  refuse(name, "a number", any);
}

std::optional<std::string> Reader::optional_text(const char* name) {
  const ffi::AnyView any = take(name);
  if (any == nullptr) return {};
  if (const auto value = any.try_cast<ffi::String>()) return std::string(*value);
  refuse(name, "a string", any);
}

template <class T>
void Reader::write(const char* name, const std::vector<T>& values) {
  static_assert(std::is_same_v<T, std::int64_t> || std::is_same_v<T, float>);
  constexpr DType kDType = std::is_same_v<T, float> ? DType::f32 : DType::i64;
  const Tensor to = tensor(name, to_string(kDType));
  const auto count = static_cast<std::int64_t>(values.size());
  if (to.dtype != kDType || to.rank != 1 || to.size(0) != count) {
    fail("ValueError", name,
         std::string("expected ") + to_string(kDType) + "[" + std::to_string(count) + "], got " +
             to_string(to));
  }
  for (std::int64_t i = 0; i < count; ++i)
    static_cast<T*>(to.data)[i * to.stride(0)] = values[static_cast<std::size_t>(i)];
}
template void Reader::write(const char*, const std::vector<std::int64_t>&);
template void Reader::write(const char*, const std::vector<float>&);

BsrMatrix Reader::bsr(const char* part, const char* dtypes) {
  BsrMatrix matrix;
  part_ = part;
  matrix.values = tensor("values", dtypes);
  matrix.row_offsets = tensor("row_offsets", kIndices);
  matrix.col_indices = tensor("col_indices", kIndices);
  matrix.rows = integer("rows");
  matrix.cols = integer("cols");
  part_ = "";
  return matrix;
}

Operand Reader::operand(const char* name, const char* part) {
  Operand operand;
  const bool is_sparse = next_ + 1 < args_.size() && args_[next_ + 1] != nullptr;
  if (is_sparse) {
    operand.sparse = bsr(part, kInputs);
  } else {
    operand.dense = tensor(name, kInputs);
    next_ += 4;  // row_offsets, col_indices, rows, cols
  }
  operand.transposed = boolean("transposed");
  return operand;
}

BlockList Reader::block_list(const char* part) {
  BlockList list;
  part_ = part;
  list.counts = tensor("counts", kIndices);
  list.indices = tensor("indices", kIndices);
  part_ = "";
  return list;
}

BlockMask Reader::block_mask() {
  BlockMask mask;
  part_ = "mask.";
  mask.block_q = integer("block_q");
  mask.block_kv = integer("block_kv");
  mask.full.counts = tensor("full_counts", kIndices);
  mask.full.indices = tensor("full_indices", kIndices);
  mask.partial.counts = tensor("partial_counts", kIndices);
  mask.partial.indices = tensor("partial_indices", kIndices);
  mask.bit_tile = tensor("bit_tile", kIndices);
  mask.bits = tensor("bits", "uint8");
  part_ = "";
  return mask;
}

Execution Reader::execution() {
  Execution execution;
  execution.threads = static_cast<int>(integer("threads"));
  if (const auto name = optional_text("backend")) execution.backend = parse_backend(*name);
  if (auto name = optional_text("kernel")) execution.kernel = std::move(*name);
  return execution;
}

}  // namespace tessera::python
