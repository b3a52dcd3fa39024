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

/// Memory for one call or one plan, from the framework whose tensors came (torch's caching
/// allocator), else from the host.
class Scratch {
 public:
  explicit Scratch(const Device& device) : device_(device) {}
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// 128-byte aligned; lives as long as this object.
  void* allocate(std::int64_t bytes);
  /// The same as the source of a call's buffers.
  ScratchSource source();

 private:
  Device device_;
  std::vector<tvm::ffi::Tensor> framework_;
  std::vector<std::unique_ptr<std::byte[]>> host_;
};

/// Plans, prepares and runs on the caller's stream, with scratch from the caller's framework where
/// it has an allocator.
void execute(const Call& call);

/// The device that the problem's tensors are on.
Device device_of(const AnyProblem& problem);
/// How the call runs, on the stream that is current for its device.
Execution on_current_stream(const Call& call);
Execution on_current_stream(const Device& device, Execution execution = {});

/// An error's message, with the names that arguments have in Python ("bias") in place of their
/// paths in the C++ problems ("epilogue.bias").
std::string message_of(const Error& error);

/// The Python exception of an error's code.
const char* exception_of(ErrorCode code);

/// Calls body(); the library's errors become the Python exceptions that name them.
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
