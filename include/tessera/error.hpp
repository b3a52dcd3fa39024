#pragma once

#include <stdexcept>
#include <string>

#include <tessera/export.hpp>

namespace tessera {

/// What kind of failure an `Error` reports.
enum class ErrorCode {
  invalid_argument,  ///< an argument is wrong: the message names it, what came and what is accepted
  unsupported,       ///< valid, but no kernel takes it: the message lists every backend's reason
  io,                ///< a file could not be read or is not what it claims to be
  out_of_memory,     ///< a workspace could not be had
  device,            ///< a call into the driver or runtime failed: the message carries its name
};

TESSERA_EXPORT const char* to_string(ErrorCode code);

/// The one exception this library throws. Outputs are untouched when a call throws it.
class TESSERA_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ~Error() override;
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace tessera
