#pragma once

#include <cstdint>
#include <memory>

#include <tessera/execution.hpp>

namespace tessera::api {

/// Host memory for a workspace or schedule that the caller did not bring; freed with the object.
class OwnedBuffer {
 public:
  /// Throws Error(out_of_memory). Zero bytes own nothing.
  explicit OwnedBuffer(std::int64_t bytes);
  Buffer view() const { return {storage_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> storage_;
  std::int64_t bytes_;
};

}  // namespace tessera::api
