#pragma once

#include <cstdint>
#include <memory>

#include <tessera/execution.hpp>
#include <tessera/tensor.hpp>

#include "src/core/overlap.hpp"

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

/// A buffer for the time of a call: the caller's, else one of the caller's scratch source, else one
/// of the library's. Refuses one of the caller's that is too small or not aligned, by its name in
/// Execution.
class CallBuffer {
 public:
  CallBuffer(const char* name, const Buffer& given, std::int64_t bytes, const Device& device,
             const Execution& execution);
  void* data() const { return view_.data; }

 private:
  OwnedBuffer own_;
  Buffer view_;
};

/// Refuses a buffer that is too small or not aligned, by its name in Execution.
void check_buffer(const char* name, const Buffer& buffer, std::int64_t bytes);

/// Adds a buffer that the caller brought, by its name in Execution: the call writes `bytes` of it.
void add_buffer(core::Outputs& outputs, const char* call, const char* name, const Buffer& buffer,
                std::int64_t bytes, const Device& device);

}  // namespace tessera::api
