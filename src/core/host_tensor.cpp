#include <tessera/host_tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include <tessera/error.hpp>

#include "src/core/checked.hpp"
#include "src/core/half.hpp"

namespace tessera {
namespace {

constexpr std::int64_t kAlignment = 64;

// Rounds to nearest even and clamps to the type's range; NaN becomes 0.
template <class Integer>
Integer to_integer(float value) {
  using Limits = std::numeric_limits<Integer>;
  if (std::isnan(value)) return 0;
  const double low = static_cast<double>(Limits::min());
  const double past_high = std::ldexp(1.0, Limits::digits);
  const double rounded = std::nearbyint(static_cast<double>(value));
  if (rounded <= low) return Limits::min();
  if (rounded >= past_high) return Limits::max();
  return static_cast<Integer>(rounded);
}

}  // namespace

HostTensor::HostTensor(DType dtype, const std::vector<std::int64_t>& shape) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::invalid_argument, "HostTensor: " + what);
  };
  if (size_of(dtype) == 0) refuse("dtype: expected an element type, got none");
  if (shape.size() > static_cast<std::size_t>(kMaxRank)) {
    refuse("shape: expected at most " + std::to_string(kMaxRank) + " dimensions, got " +
           std::to_string(shape.size()));
  }
  Tensor view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  bool empty = false;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] < 0) refuse("shape: expected sizes of 0 or more, got " + std::to_string(shape[i]));
    view.shape[i] = shape[i];
    view.strides[i] = stride;
    empty = empty || shape[i] == 0;
    stride =
        core::checked_multiply(stride, std::max<std::int64_t>(shape[i], 1), "HostTensor: shape");
  }
  // An empty tensor has an allocation too, so that its pointer is not null.
  const std::int64_t bytes =
      core::checked_multiply(empty ? 0 : stride, size_of(dtype), "HostTensor: shape");
  const std::int64_t rounded =
      core::checked_add(std::max<std::int64_t>(bytes, 1), kAlignment - 1, "HostTensor: shape") /
      kAlignment * kAlignment;
  const auto size = static_cast<std::size_t>(rounded);
  storage_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, size)));
  if (!storage_) {
    throw Error(ErrorCode::out_of_memory,
                "HostTensor: could not allocate " + std::to_string(rounded) + " bytes");
  }
  std::memset(storage_.get(), 0, size);
  view.data = storage_.get();
  view_ = view;
}

void HostTensor::refuse_element_type(std::size_t bytes) const {
  const auto matching = [this] {
    switch (view_.dtype) {
      case DType::f32:
        return "float";
      case DType::f16:
      case DType::bf16:
        return "std::uint16_t or another type of 16 bits";
      case DType::i32:
        return "std::int32_t";
      case DType::i64:
        return "std::int64_t";
      default:
        return "a type of one byte";
    }
  };
  throw Error(ErrorCode::invalid_argument,
              "HostTensor: data<T>: expected " + std::string(matching()) + " for elements of " +
                  to_string(view_.dtype) + ", got another type, of " + std::to_string(bytes) +
                  (bytes == 1 ? " byte" : " bytes"));
}

void HostTensor::Free::operator()(std::byte* p) const { std::free(p); }

float load_as_float(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(data)[index];
    case DType::f16:
      return core::float_from_f16(static_cast<const std::uint16_t*>(data)[index]);
    case DType::bf16:
      return core::float_from_bf16(static_cast<const std::uint16_t*>(data)[index]);
    case DType::e4m3:
      return core::float_from_e4m3(static_cast<const std::uint8_t*>(data)[index]);
    case DType::e5m2:
      return core::float_from_e5m2(static_cast<const std::uint8_t*>(data)[index]);
    case DType::i32:
      return static_cast<float>(static_cast<const std::int32_t*>(data)[index]);
    case DType::i64:
      return static_cast<float>(static_cast<const std::int64_t*>(data)[index]);
    case DType::u8:
      return static_cast<const std::uint8_t*>(data)[index];
    case DType::none:
      break;
  }
  throw Error(ErrorCode::invalid_argument,
              "load_as_float: dtype: expected an element type, got none");
}

void store_from_float(void* data, DType dtype, std::int64_t index, float value) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(data)[index] = value;
      return;
    case DType::f16:
      static_cast<std::uint16_t*>(data)[index] = core::f16_from_float(value);
      return;
    case DType::bf16:
      static_cast<std::uint16_t*>(data)[index] = core::bf16_from_float(value);
      return;
    case DType::e4m3:
      static_cast<std::uint8_t*>(data)[index] = core::e4m3_from_float(value);
      return;
    case DType::e5m2:
      static_cast<std::uint8_t*>(data)[index] = core::e5m2_from_float(value);
      return;
    case DType::i32:
      static_cast<std::int32_t*>(data)[index] = to_integer<std::int32_t>(value);
      return;
    case DType::i64:
      static_cast<std::int64_t*>(data)[index] = to_integer<std::int64_t>(value);
      return;
    case DType::u8:
      static_cast<std::uint8_t*>(data)[index] = to_integer<std::uint8_t>(value);
      return;
    case DType::none:
      break;
  }
  throw Error(ErrorCode::invalid_argument,
              "store_from_float: dtype: expected an element type, got none");
}

}  // namespace tessera
