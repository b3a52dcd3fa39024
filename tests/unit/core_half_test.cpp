// 16-bit and 8-bit floats against double arithmetic: every code, and every rounding boundary.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/core/half.hpp"
#include "tests/support/random.hpp"

namespace {

using namespace tessera;  // NOLINT: the test uses many names

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Format {
  const char* name;
  int mantissa, bias;
  std::uint32_t top;       // code of the largest finite magnitude
  std::uint32_t overflow;  // code that larger magnitudes round to
  std::uint32_t sign;      // the sign bit
  float (*widen)(std::uint32_t);
  std::uint32_t (*narrow)(float);

  // The value of a magnitude code by the format's definition.
  double value(std::uint32_t code) const {
    const auto exponent = static_cast<int>(code >> mantissa);
    const double fraction = std::ldexp(code & ((1u << mantissa) - 1), -mantissa);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias)
                         : std::ldexp(1.0 + fraction, exponent - bias);
  }
};

const Format kFormats[] = {
    {"f16", 10, 15, 0x7bff, 0x7c00, 0x8000,
     [](std::uint32_t code) { return core::float_from_f16(static_cast<std::uint16_t>(code)); },
     [](float x) { return std::uint32_t{core::f16_from_float(x)}; }},
    {"bf16", 7, 127, 0x7f7f, 0x7f80, 0x8000,
     [](std::uint32_t code) { return core::float_from_bf16(static_cast<std::uint16_t>(code)); },
     [](float x) { return std::uint32_t{core::bf16_from_float(x)}; }},
    {"e4m3", 3, 7, 0x7e, 0x7e, 0x80,
     [](std::uint32_t code) { return core::float_from_e4m3(static_cast<std::uint8_t>(code)); },
     [](float x) { return std::uint32_t{core::e4m3_from_float(x)}; }},
    {"e5m2", 2, 15, 0x7b, 0x7c, 0x80,
     [](std::uint32_t code) { return core::float_from_e5m2(static_cast<std::uint8_t>(code)); },
     [](float x) { return std::uint32_t{core::e5m2_from_float(x)}; }},
};

class Half : public ::testing::TestWithParam<Format> {};

TEST_P(Half, EveryCodeHasItsValueAndRoundTrips) {
  const Format& format = GetParam();
  for (std::uint32_t code = 0; code <= format.top; ++code) {
    for (const std::uint32_t sign : {0u, format.sign}) {
      const float widened = format.widen(sign | code);
      const double expected = sign ? -format.value(code) : format.value(code);
      ASSERT_EQ(static_cast<double>(widened), expected) << format.name << " " << code;
      ASSERT_EQ(std::signbit(widened), sign != 0);
      ASSERT_EQ(format.narrow(widened), sign | code) << format.name << " " << code;
    }
  }
}

TEST_P(Half, InfinitiesAndNans) {
  const Format& format = GetParam();
  for (std::uint32_t code = format.top + 1; code < format.sign; ++code) {
    for (const std::uint32_t sign : {0u, format.sign}) {
      const float widened = format.widen(sign | code);
      if (code == format.overflow) {
        EXPECT_EQ(widened, sign ? -kInfinity : kInfinity);
        EXPECT_EQ(format.narrow(widened), sign | code);
      } else {
        EXPECT_TRUE(std::isnan(widened)) << format.name << " " << code;
        EXPECT_TRUE(std::isnan(format.widen(format.narrow(widened)))) << format.name << " " << code;
      }
    }
  }
  // A NaN whose payload lies in the bits that narrowing cuts off.
  EXPECT_TRUE(std::isnan(format.widen(format.narrow(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(format.widen(format.narrow(std::bit_cast<float>(0xff800001u)))));
  EXPECT_EQ(format.narrow(kInfinity), format.overflow);
  EXPECT_EQ(format.narrow(-kInfinity), format.sign | format.overflow);
}

TEST_P(Half, RoundsToNearestEvenAtEveryBoundary) {
  const Format& format = GetParam();
  for (std::uint32_t code = 0; code <= format.top; ++code) {
    // After the largest code, the next value is the one that the next code would have.
    const double middle_value = (format.value(code) + format.value(code + 1)) / 2;
    const auto middle = static_cast<float>(middle_value);
    if (static_cast<double>(middle) != middle_value) continue;  // f32 cannot represent the middle
    const std::uint32_t above = code == format.top ? format.overflow : code + 1;
    const std::uint32_t even = code % 2 == 0 ? code : above;
    ASSERT_EQ(format.narrow(middle), even) << format.name << " " << code;
    ASSERT_EQ(format.narrow(-middle), format.sign | even) << format.name << " " << code;
    ASSERT_EQ(format.narrow(std::nextafter(middle, 0.0f)), code) << format.name << " " << code;
    ASSERT_EQ(format.narrow(std::nextafter(middle, kInfinity)), above)
        << format.name << " " << code;
  }
}

TEST_P(Half, RandomFloatsRoundToTheNearest) {
  const Format& format = GetParam();
  generate::Random random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()) & 0x7fffffffu);
    if (std::isnan(x) || static_cast<double>(x) > format.value(format.top)) continue;
    const std::uint32_t code = format.narrow(x);
    const double error = std::fabs(format.value(code) - static_cast<double>(x));
    if (code > 0) {
      ASSERT_LE(error, std::fabs(format.value(code - 1) - static_cast<double>(x)));
    }
    if (code < format.top) {
      ASSERT_LE(error, std::fabs(format.value(code + 1) - static_cast<double>(x)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Half, ::testing::ValuesIn(kFormats),
                         [](const auto& format) { return format.param.name; });

TEST(HalfConstants, WorkAtCompileTime) {
  static_assert(core::f16_from_float(1.0f) == 0x3c00);
  static_assert(core::float_from_f16(0x0001) == 0x1p-24f);
  static_assert(core::bf16_from_float(-2.0f) == 0xc000);
  static_assert(core::e4m3_from_float(1000.0f) == 0x7e);
  static_assert(core::float_from_e4m3(0x7e) == 448.0f);
  static_assert(core::e4m3_from_float(kNan) == 0x7f);
  static_assert(core::e5m2_from_float(1e9f) == 0x7c);
  static_assert(core::float_from_e5m2(0x7b) == 57344.0f);
  static_assert(core::e5m2_from_float(-kNan) == 0xfe || core::e5m2_from_float(-kNan) == 0x7e);
}

}  // namespace
