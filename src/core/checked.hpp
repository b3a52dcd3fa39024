#pragma once

#include <cstdint>
#include <string>

#include <tessera/error.hpp>

// Arithmetic on sizes that come from outside: it throws an Error that names the argument instead of
// overflowing.
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

}  // namespace tessera::core
