#pragma once

#include <stdexcept>
#include <string>

#include <tessera/export.hpp>

namespace tessera {

/// The kind of failure that an `Error` reports.
enum class ErrorCode {
  invalid_argument,  ///< an argument is wrong: "op: argument: expected X, got Y"
  unsupported,       ///< the problem is valid, but no kernel supports it; the message says why
  io,                ///< a file cannot be read, or its contents are malformed
  out_of_memory,     ///< an allocation failed
  device,            ///< a call to the CUDA driver or runtime failed; the message names the call
};

/// The enumerator's name: "invalid_argument", "unsupported", ...
TESSERA_EXPORT const char* to_string(ErrorCode code);

/// The exception that this library throws. A call checks its arguments before it writes anything:
/// outputs are unchanged when it throws.
class TESSERA_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ~Error() override;
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace tessera
