#pragma once

#include <cstdint>
#include <string>

#include <tessera/error.hpp>

// Arithmetic on sizes that callers give. On overflow it throws an Error that names the argument.
namespace tessera::core {

[[noreturn]] inline void throw_overflow(const std::string& argument, std::int64_t a, char op,
                                        std::int64_t b) {
  throw Error(ErrorCode::invalid_argument, argument + ": size too large: " + std::to_string(a) +
                                               " " + op + " " + std::to_string(b) +
                                               " does not fit 64 bits");
}

inline std::int64_t checked_multiply(std::int64_t a, std::int64_t b, const std::string& argument) {
  std::int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) throw_overflow(argument, a, '*', b);
  return result;
}

inline std::int64_t checked_add(std::int64_t a, std::int64_t b, const std::string& argument) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) throw_overflow(argument, a, '+', b);
  return result;
}

/// The size of a buffer. Products and sums throw on overflow.
class Size {
 public:
  constexpr Size(std::int64_t value) : value_(value) {}  // NOLINT: any count is a size
  constexpr std::int64_t value() const { return value_; }
  friend Size operator*(Size a, Size b) {
    std::int64_t result = 0;
    if (__builtin_mul_overflow(a.value_, b.value_, &result))
      throw_overflow("workspace", a.value_, '*', b.value_);
    return result;
  }
  friend Size operator+(Size a, Size b) {
    std::int64_t result = 0;
    if (__builtin_add_overflow(a.value_, b.value_, &result))
      throw_overflow("workspace", a.value_, '+', b.value_);
    return result;
  }

 private:
  std::int64_t value_;
};

}  // namespace tessera::core
