#include "src/core/check.hpp"

#include <algorithm>
#include <cmath>

#include <tessera/error.hpp>

namespace tessera::core {
namespace {

std::string list_dtypes(unsigned set) {
  std::string text;
  for (unsigned i = 0; i < 32; ++i) {
    if (!((set >> i) & 1u)) continue;
    text += (text.empty() ? "" : (set >> (i + 1)) ? ", " : " or ");
    text += to_string(static_cast<DType>(i));
  }
  return text;
}

bool has_dtype(const Tensor& tensor, unsigned accepted) {
  const auto index = static_cast<unsigned>(tensor.dtype);
  return index < 32 && ((accepted >> index) & 1u);
}

// "[batch = 2, heads = 8 or kv_heads = 2 or 1, capacity]"
std::string list_dims(Dims dims) {
  std::ostringstream text;
  text << "[";
  for (std::size_t i = 0; i < dims.size(); ++i) {
    text << (i ? ", " : "") << dims[i].name;
    if (dims[i].size != kAny) text << " = " << dims[i].size;
    if (dims[i].or_name) text << " or " << dims[i].or_name << " = " << dims[i].or_size;
    if (dims[i].or_one && dims[i].size != 1) text << " or 1";
  }
  text << "]";
  return text.str();
}

bool fits(const Tensor& tensor, Dims dims) {
  if (tensor.rank != static_cast<int>(dims.size())) return false;
  for (int i = 0; i < tensor.rank; ++i) {
    const Dim& dim = dims[static_cast<std::size_t>(i)];
    const bool shared = dim.or_one && tensor.size(i) == 1;
    const bool other = dim.or_name && tensor.size(i) == dim.or_size;
    if (dim.size != kAny && tensor.size(i) != dim.size && !shared && !other) return false;
  }
  return true;
}

// total += a * b for non-negative numbers; false if the sum exceeds kMaxSize.
bool accumulate(std::int64_t& total, std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return !__builtin_mul_overflow(a, b, &product) &&
         !__builtin_add_overflow(total, product, &total) && total <= kMaxSize;
}

// Whether the bytes of all elements, and the span from the first to the last address, are at most
// kMaxSize. Sizes of 0 count as 1, so that products of some of the sizes are safe too.
bool spans_fit(const Tensor& tensor) {
  const std::int64_t bytes = size_of(tensor.dtype);
  std::int64_t count = bytes, extent = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t size = std::max<std::int64_t>(tensor.size(i), 1);
    const std::int64_t stride = tensor.stride(i);
    std::int64_t larger = 0;
    if (!accumulate(larger, count, size)) return false;
    count = larger;
    if (size == 1) continue;  // its stride is never used
    if (stride < -kMaxSize || stride > kMaxSize) return false;
    if (!accumulate(extent, stride < 0 ? -stride : stride, size - 1)) return false;
  }
  std::int64_t span = 0;
  return accumulate(span, extent, bytes);
}

}  // namespace

std::string Where::path() const {
  std::string path;
  for (std::size_t i = 1; i < static_cast<std::size_t>(depth_); ++i) {
    path += (i == 1 ? "" : ".") + std::string(names_[i]);
  }
  return element_ < 0 ? path : path + words("[", element_, "]");
}

std::string Where::text() const {
  const std::string op = std::string(names_[0]) + ":";
  return depth_ > 1 ? op + " " + path() + ":" : op;
}

void refuse(const Where& where, const std::string& accepted, const std::string& came) {
  throw Error(ErrorCode::invalid_argument,
              words(where.text(), " expected ", accepted, ", got ", came));
}

void check_tensor(const Where& where, const Tensor& tensor, const Device& device) {
  if (!tensor) refuse(where, "a tensor", "none");
  if (size_of(tensor.dtype) == 0) {
    refuse(where, "a known dtype", words("dtype number ", static_cast<int>(tensor.dtype)));
  }
  if (tensor.rank < 1 || tensor.rank > kMaxRank) {
    refuse(where, words("1 to ", kMaxRank, " dimensions"), words("rank ", tensor.rank));
  }
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.size(i) < 0) refuse(where, "sizes of zero or more", to_string(tensor));
  }
  if (!spans_fit(tensor)) {
    refuse(where, "sizes and strides that span at most 2^60 bytes", to_string(tensor));
  }
  if (tensor.device != device) {
    refuse(where, words("all tensors on ", to_string(device)), to_string(tensor));
  }
}

void check_dtype(const Where& where, const Tensor& tensor, unsigned accepted) {
  if (!has_dtype(tensor, accepted)) {
    refuse(where, words("dtype ", list_dtypes(accepted)), to_string(tensor));
  }
}

void check_same_dtype(const Where& where, const Tensor& tensor, DType dtype, const char* other) {
  if (tensor.dtype != dtype) {
    refuse(where, words("dtype ", to_string(dtype), " as ", other, " has"), to_string(tensor));
  }
}

void check_shape(const Where& where, const Tensor& tensor, Dims dims, const char* note) {
  if (!fits(tensor, dims)) {
    refuse(where, words("shape ", list_dims(dims), note), to_string(tensor));
  }
}

// Visits the dimensions in ascending order of strides: each stride must be larger than the extent
// of all smaller ones.
void check_no_alias(const Where& where, const Tensor& tensor) {
  struct Step {
    std::int64_t stride, size;
  };
  std::array<Step, kMaxRank> steps{};
  std::size_t count = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.size(i) == 0) return;
    if (tensor.size(i) == 1) continue;
    const std::int64_t stride = tensor.stride(i);
    const Step step{stride < 0 ? -stride : stride, tensor.size(i)};
    // An insertion sort: GCC 14 warns about std::sort over an array this short.
    std::size_t at = count++;
    for (; at > 0 && steps[at - 1].stride > step.stride; --at) steps[at] = steps[at - 1];
    steps[at] = step;
  }
  std::int64_t reach = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (steps[i].stride <= reach) {
      refuse(where, "strides that give each element of an output its own address",
             to_string(tensor));
    }
    reach += steps[i].stride * (steps[i].size - 1);
  }
}

void check_floats(const Where& where, const Tensor& tensor, const Device& device, Dims dims) {
  check_tensor(where, tensor, device);
  check_dtype(where, tensor, kFloats);
  check_shape(where, tensor, dims);
}

void check_output(const Where& where, const Tensor& tensor, const Device& device, Dims dims) {
  check_floats(where, tensor, device, dims);
  check_no_alias(where, tensor);
}

void check_list(const Where& where, const Tensor& tensor, const Device& device, Dims dims,
                unsigned accepted) {
  check_tensor(where, tensor, device);
  check_dtype(where, tensor, accepted);
  check_shape(where, tensor, dims);
}

void check_finite(const Where& where, float value) {
  if (!std::isfinite(value)) refuse(where, "a finite number", words(value));
}

}  // namespace tessera::core
