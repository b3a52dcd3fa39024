#pragma once

#include <memory>
#include <new>
#include <string>
#include <vector>

#include <tessera/error.hpp>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>

#include "src/ffi/problems.hpp"

namespace tessera::python {

/// Memory for one call or one plan. It comes from the framework of the call's tensors (for PyTorch,
/// the caching allocator) if that has an allocator, else from the host.
class Scratch {
 public:
  explicit Scratch(const Device& device) : device_(device) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// Allocates memory aligned to 128 bytes that lives as long as this object.
  void* allocate(std::int64_t bytes);
  /// This object as the source of a call's buffers.
  ScratchSource source();

 private:
  Device device_;
  std::vector<tvm::ffi::Tensor> framework_;
  std::vector<std::unique_ptr<std::byte[]>> host_;
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
