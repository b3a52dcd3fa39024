#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <tessera/error.hpp>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/optional.h>

#include "src/ffi/problems.hpp"

namespace tessera::python {

/// Memory aligned to 128 bytes. It comes from the framework of the call's tensors (for PyTorch, the
/// caching allocator) if that has an allocator, else from the host.
class Scratch {
 public:
  Scratch() = default;
  Scratch(std::int64_t bytes, const Device& device);
  void* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }

 private:
  tvm::ffi::Optional<tvm::ffi::Tensor> framework_;
  std::unique_ptr<std::byte[]> host_;
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// The buffers of one call on a stream. Allocating takes a framework several microseconds, so small
/// buffers on a GPU are kept for the thread's next calls on that stream, which run after this one.
/// While the stream is captured none is kept: replays of the graph may run beside later calls.
class CallScratch {
 public:
  CallScratch(const Device& device, void* stream) : device_(device), stream_(stream) {}
  CallScratch(const CallScratch&) = delete;
  CallScratch& operator=(const CallScratch&) = delete;

  /// This object as the source of the call's buffers.
  ScratchSource source();

 private:
  void* allocate(std::int64_t bytes);

  Device device_;
  void* stream_;
  std::size_t taken_ = 0;  // buffers so far
  std::vector<Scratch> own_;
};

/// Plans, prepares and runs on the framework's current stream, with buffers from `Scratch`.
void execute(const Call& call);

/// The device that the problem's tensors are on.
Device device_of(const AnyProblem& problem);
/// The call's execution, on the framework's current stream of its device.
Execution on_current_stream(const Call& call);
Execution on_current_stream(const Device& device, Execution execution = {});

/// The message of an error, with argument paths of C++ problems ("epilogue.bias") replaced by the
/// names in Python ("bias").
std::string message_of(const Error& error);

/// The name of the Python exception for an error code.
const char* exception_of(ErrorCode code);

/// Calls body() and converts the library's errors to Python exceptions.
template <class Body>
void translated(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    throw tvm::ffi::Error(exception_of(error.code()), message_of(error), "");
  } catch (const std::bad_alloc&) {
    throw tvm::ffi::Error("MemoryError", "no host memory", "");
  }
}

}  // namespace tessera::python
