#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <tessera/execution.hpp>
#include <tessera/tensor.hpp>

#include "src/core/overlap.hpp"

namespace tessera::api {

/// A workspace or schedule that the library allocates because the caller gave none. It is freed
/// with the object. On a GPU it comes from the device's memory pool, in stream order.
class OwnedBuffer {
 public:
  /// Throws Error(out_of_memory) if the allocation fails. With 0 bytes, nothing is allocated.
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

/// A buffer on a GPU that the library keeps for later calls on the stream, as allocating takes
/// microseconds. Calls on a stream run one after another, so they may share it. Empty, with null
/// data, where there is none: on the CPU, for large buffers, while the stream is captured, and
/// after the first few streams.
class KeptBuffer {
 public:
  KeptBuffer() = default;
  KeptBuffer(std::int64_t bytes, const Device& device, void* stream);
  KeptBuffer(KeptBuffer&& other) noexcept : taken_(std::exchange(other.taken_, nullptr)) {}
  KeptBuffer& operator=(KeptBuffer&&) = delete;
  ~KeptBuffer();
  Buffer view() const;

  static constexpr std::int64_t kMaxBytes = std::int64_t{32} << 20;

 private:
  struct Place;
  Place* taken_ = nullptr;
};

/// The buffer of one call: the caller's own, else one from the caller's scratch source, else one of
/// the library. Throws if the caller's is too small or not aligned; `name` is its name in
/// Execution.
class CallBuffer {
 public:
  CallBuffer(const char* name, const Buffer& given, std::int64_t bytes, const Device& device,
             const Execution& execution);
  void* data() const { return view_.data; }

 private:
  KeptBuffer kept_;
  OwnedBuffer own_;
  Buffer view_;
};

/// Throws if a buffer is too small or not aligned; `name` is its name in Execution.
void check_buffer(const char* name, const Buffer& buffer, std::int64_t bytes);

/// Adds the caller's buffer to the outputs of a call, which writes `bytes` of it; `name` is its
/// name in Execution.
void add_buffer(core::Outputs& outputs, const char* call, const char* name, const Buffer& buffer,
                std::int64_t bytes, const Device& device);

}  // namespace tessera::api
