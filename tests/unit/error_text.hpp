#pragma once

#include <gtest/gtest.h>

#include <string>

#include <tessera/error.hpp>

namespace tessera::testing {

/// Runs a call that must throw `Error` with the given code; returns its message.
template <class Call>
std::string error_text(Call&& call, ErrorCode code = ErrorCode::invalid_argument) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), std::string(to_string(code))) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "expected an Error";
  return "";
}

/// Whether a message holds a text: for EXPECT_PRED2, which prints both.
inline bool contains(const std::string& message, const std::string& text) {
  return message.find(text) != std::string::npos;
}

}  // namespace tessera::testing
