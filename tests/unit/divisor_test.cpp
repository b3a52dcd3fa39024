// Division by multiplication.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "src/walk/divisor.hpp"

namespace tessera::planning {
namespace {

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();

TEST(Divisor, DividesEveryNumberOf31Bits) {
  for (const std::int32_t divisor :
       {1,       2,   3,    5,    7,    8,     10,    12,      64,      131,
        132,     641, 4095, 4096, 4097, 65535, 65537, 1000003, 1 << 30, (1 << 30) + 1,
        kLargest}) {
    const Divisor d = Divisor::of(divisor);
    for (std::int32_t i = 0; i < 3000; ++i) {
      // Small and large numbers, and those around multiples of the divisor.
      const std::int64_t most = kLargest / divisor, multiple = divisor * (most - i % (most + 1));
      for (const std::int64_t number :
           {std::int64_t{i}, std::int64_t{kLargest - i}, multiple, multiple - 1, multiple + 1}) {
        if (number < 0 || number > kLargest) continue;
        const auto narrow = static_cast<std::int32_t>(number);
        ASSERT_EQ(d.quotient(narrow), narrow / divisor) << number << " / " << divisor;
        ASSERT_EQ(d.rest(narrow), narrow % divisor) << number << " % " << divisor;
        ASSERT_EQ(d.quotient(number), number / divisor) << number << " / " << divisor;
      }
    }
    for (const std::int64_t number : {std::int64_t{1} << 31, (std::int64_t{1} << 40) + 12345})
      ASSERT_EQ(d.quotient(number), number / divisor) << number << " / " << divisor;
  }
}

TEST(SmallDivisor, DividesAllItsNumbers) {
  for (int divisor = 1; divisor <= SmallDivisor::kMax; ++divisor)
    for (int number = 0; number < SmallDivisor::kMax; ++number)
      ASSERT_EQ(SmallDivisor::of(divisor).quotient(number), number / divisor);
}

}  // namespace
}  // namespace tessera::planning
