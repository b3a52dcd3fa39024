#pragma once

#include <cstdint>
#include <memory>

#include <tessera/execution.hpp>
#include <tessera/tensor.hpp>

namespace tessera::api {

/// A workspace or schedule that the caller did not bring; freed with the object. On a GPU it comes
/// from the device's pool, in the order of the stream.
class OwnedBuffer {
 public:
  /// Throws Error(out_of_memory). Zero bytes own nothing.
  OwnedBuffer(std::int64_t bytes, const Device& device, void* stream);
  Buffer view() const { return {storage_.get(), bytes_}; }

 private:
  struct Free {
    Device device;
    void* stream;
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> storage_;
  std::int64_t bytes_;
};

/// Refuses a buffer that is too small or not aligned, by its name in Execution.
void check_buffer(const char* name, const Buffer& buffer, std::int64_t bytes);

}  // namespace tessera::api
