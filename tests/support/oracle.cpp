#include "tests/support/oracle.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace tessera::oracle {
namespace {

/// Significand bits (the hidden one included), smallest normal exponent and largest finite value.
struct Format {
  int bits;
  int smallest_exponent;
  double largest;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return {11, -14, 65504.0};
    case DType::bf16:
      return {8, -126, std::ldexp(255.0, 120)};
    case DType::e4m3:
      return {4, -6, 448.0};
    case DType::e5m2:
      return {3, -14, 57344.0};
    default:
      return {24, -126, std::numeric_limits<float>::max()};
  }
}

double decode(std::uint32_t bits, int exponent_bits, int fraction_bits, bool has_infinity) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const bool negative = (bits >> (fraction_bits + exponent_bits)) & 1u;
  double value = 0;
  if (has_infinity && exponent == (1 << exponent_bits) - 1) {
    value = fraction ? std::numeric_limits<double>::quiet_NaN()
                     : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - bias - fraction_bits);
  } else {
    value = std::ldexp(fraction + (1u << fraction_bits), exponent - bias - fraction_bits);
  }
  return negative ? -value : value;
}

double read_element(const Tensor& tensor, std::int64_t element) {
  const char* at = static_cast<const char*>(tensor.data) + element * size_of(tensor.dtype);
  const auto load = [at](auto zero) {
    std::memcpy(&zero, at, sizeof(zero));
    return zero;
  };
  switch (tensor.dtype) {
    case DType::f32:
      return load(0.0f);
    case DType::f16:
      return decode(load(std::uint16_t{}), 5, 10, true);
    case DType::bf16:
      return decode(load(std::uint16_t{}), 8, 7, true);
    case DType::e4m3: {
      const auto bits = load(std::uint8_t{});
      if ((bits & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
      return decode(bits, 4, 3, false);
    }
    case DType::e5m2:
      return decode(load(std::uint8_t{}), 5, 2, true);
    case DType::i32:
      return load(std::int32_t{});
    case DType::i64:
      return static_cast<double>(load(std::int64_t{}));
    case DType::u8:
      return load(std::uint8_t{});
    case DType::none:
      break;
  }
  return 0;
}

std::uint32_t encode(double value, int exponent_bits, int fraction_bits) {
  const std::uint32_t sign = std::signbit(value) ? 1u << (exponent_bits + fraction_bits) : 0u;
  const std::uint32_t top = ((1u << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(value)) return top | (1u << (fraction_bits - 1));
  if (std::isinf(value)) return sign | top;
  const double size = std::fabs(value);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (size < std::ldexp(1.0, 1 - bias)) {
    return sign | static_cast<std::uint32_t>(std::ldexp(size, bias - 1 + fraction_bits));
  }
  const int exponent = std::ilogb(size);
  const auto significand = static_cast<std::uint32_t>(std::ldexp(size, fraction_bits - exponent));
  return sign | (static_cast<std::uint32_t>(exponent + bias) << fraction_bits) |
         (significand - (1u << fraction_bits));
}

void write_element(const Tensor& tensor, std::int64_t element, double value) {
  char* at = static_cast<char*>(tensor.data) + element * size_of(tensor.dtype);
  const auto store = [at](auto bits) { std::memcpy(at, &bits, sizeof(bits)); };
  const double rounded = size_of(tensor.dtype) ? round_to(tensor.dtype, value) : 0.0;
  switch (tensor.dtype) {
    case DType::f32:
      store(static_cast<float>(rounded));
      break;
    case DType::f16:
      store(static_cast<std::uint16_t>(encode(rounded, 5, 10)));
      break;
    case DType::bf16:
      store(static_cast<std::uint16_t>(encode(rounded, 8, 7)));
      break;
    case DType::e4m3:
      store(static_cast<std::uint8_t>(std::isfinite(rounded) ? encode(rounded, 4, 3) : 0x7f));
      break;
    case DType::e5m2:
      store(static_cast<std::uint8_t>(encode(rounded, 5, 2)));
      break;
    case DType::i32:
      store(static_cast<std::int32_t>(value));
      break;
    case DType::i64:
      store(static_cast<std::int64_t>(value));
      break;
    case DType::u8:
      store(static_cast<std::uint8_t>(value));
      break;
    case DType::none:
      break;
  }
}

/// Calls body(position in row-major order, offset in the tensor's memory) for every element.
template <class Body>
void for_each_element(const Tensor& tensor, Body body) {
  const std::int64_t count = tensor.numel();
  std::array<std::int64_t, kMaxRank> index{};
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t element = 0;
    for (int d = 0; d < tensor.rank; ++d) {
      element += index[static_cast<std::size_t>(d)] * tensor.stride(d);
    }
    body(static_cast<std::size_t>(n), element);
    for (int d = tensor.rank - 1; d >= 0; --d) {
      auto& at = index[static_cast<std::size_t>(d)];
      if (++at < tensor.size(d)) break;
      at = 0;
    }
  }
}

}  // namespace

DenseArray::DenseArray(std::vector<std::int64_t> dims, double fill) : shape(std::move(dims)) {
  std::size_t count = 1;
  for (std::int64_t size : shape) count *= static_cast<std::size_t>(size);
  values.assign(count, fill);
}

std::size_t DenseArray::offset(std::initializer_list<std::int64_t> index) const {
  std::int64_t at = 0;
  int d = 0;
  for (std::int64_t i : index) at = at * size(d++) + i;
  return static_cast<std::size_t>(at);
}

DenseArray read(const Tensor& tensor) {
  DenseArray array(
      std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank));
  for_each_element(tensor, [&](std::size_t n, std::int64_t element) {
    array.values[n] = read_element(tensor, element);
  });
  return array;
}

void write(const Tensor& tensor, const DenseArray& array) {
  for_each_element(tensor, [&](std::size_t n, std::int64_t element) {
    write_element(tensor, element, array.values[n]);
  });
}

double ulp(DType dtype, double value) {
  const Format format = format_of(dtype);
  const double size = std::fabs(value);
  int exponent = format.smallest_exponent;
  if (size > format.largest) {
    exponent = std::ilogb(format.largest);
  } else if (size > 0) {
    exponent = std::max(exponent, std::ilogb(size));
  }
  return std::ldexp(1.0, exponent - (format.bits - 1));
}

double round_to(DType dtype, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  // Above the largest value, rounds as if the exponent range were unlimited.
  const Format format = format_of(dtype);
  const int exponent = std::max(format.smallest_exponent, std::ilogb(value));
  const double step = std::ldexp(1.0, exponent - (format.bits - 1));
  const double rounded = std::nearbyint(value / step) * step;
  if (std::fabs(rounded) <= format.largest) return rounded;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

double largest(DType dtype) { return format_of(dtype).largest; }

}  // namespace tessera::oracle
