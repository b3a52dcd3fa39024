#pragma once

#include <bit>
#include <cstdint>

// Scalar conversions between f32 and the 16-bit and 8-bit float types. Widening is exact; narrowing
// rounds to nearest even. NaN stays NaN.
namespace tessera::core {

/// Narrows a finite or infinite f32 magnitude (its bits without the sign) to the code of a format
/// with `mantissa` mantissa bits and the given exponent bias, which is less than f32's 127. If the
/// magnitude is too large for the format, the code is too, and the caller clamps it.
constexpr std::uint32_t narrow_magnitude(std::uint32_t magnitude, int mantissa, int bias) {
  const int lowest = 128 - bias;  // f32's exponent field of the format's smallest normal number
  const int exponent = static_cast<int>(magnitude >> 23);
  std::uint32_t kept = magnitude;
  int shift = 23 - mantissa;
  if (exponent >= lowest) {
    kept -= static_cast<std::uint32_t>(lowest - 1) << 23;
  } else {  // subnormal in that format: the leading one becomes explicit
    kept = (magnitude & 0x7fffffu) | 0x800000u;
    shift += lowest - exponent;
    if (shift > 24) return 0;
  }
  const std::uint32_t odd = (kept >> shift) & 1u;
  return (kept + (1u << (shift - 1)) - 1u + odd) >> shift;
}

/// The f32 value of a finite magnitude code.
constexpr float widen_magnitude(std::uint32_t code, int mantissa, int bias) {
  if ((code >> mantissa) == 0) {  // subnormal: a small integer times a power of two
    const auto unit = static_cast<std::uint32_t>(128 - bias - mantissa) << 23;
    return static_cast<float>(code) * std::bit_cast<float>(unit);
  }
  const auto rebias = static_cast<std::uint32_t>(127 - bias) << 23;
  return std::bit_cast<float>((code << (23 - mantissa)) + rebias);
}

constexpr float with_sign(float magnitude, bool negative) {
  return negative ? -magnitude : magnitude;
}

inline constexpr std::uint32_t kFloatInfinity = 0x7f800000u;

constexpr std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t code = 0;
  if (magnitude > kFloatInfinity) {
    code = 0x7e00u | ((magnitude >> 13) & 0x1ffu);  // quiet NaN with the upper payload bits
  } else {
    code = narrow_magnitude(magnitude, 10, 15);
    if (code > 0x7c00u) code = 0x7c00u;
  }
  return static_cast<std::uint16_t>(sign | code);
}

constexpr float float_from_f16(std::uint16_t half) {
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t code = half & 0x7fffu;
  if (code >= 0x7c00u) {
    return std::bit_cast<float>(sign | kFloatInfinity | ((code & 0x3ffu) << 13));
  }
  return with_sign(widen_magnitude(code, 10, 15), sign != 0);
}

constexpr std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > kFloatInfinity) {
    // Sets a payload bit, as a NaN with a payload of 0 would be an infinity.
    return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  }
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

constexpr float float_from_bf16(std::uint16_t half) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

/// e4m3fn has no infinities; values above its maximum, 448, saturate.
constexpr std::uint8_t e4m3_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > kFloatInfinity) return 0x7f;
  std::uint32_t code = narrow_magnitude(magnitude, 3, 7);
  if (code > 0x7eu) code = 0x7eu;
  return static_cast<std::uint8_t>(((bits >> 24) & 0x80u) | code);
}

constexpr float float_from_e4m3(std::uint8_t byte) {
  const std::uint32_t code = byte & 0x7fu;
  if (code == 0x7fu) return std::bit_cast<float>(0x7fc00000u);
  return with_sign(widen_magnitude(code, 3, 7), (byte & 0x80u) != 0);
}

/// Values above e5m2's maximum, 57344, round to infinity, as those of f16 do.
constexpr std::uint8_t e5m2_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t code = 0x7e;
  if (magnitude <= kFloatInfinity) {
    code = narrow_magnitude(magnitude, 2, 15);
    if (code > 0x7cu) code = 0x7cu;
  }
  return static_cast<std::uint8_t>(((bits >> 24) & 0x80u) | code);
}

constexpr float float_from_e5m2(std::uint8_t byte) {
  // An f16 without the lower half of its mantissa.
  return float_from_f16(static_cast<std::uint16_t>(byte << 8));
}

}  // namespace tessera::core
