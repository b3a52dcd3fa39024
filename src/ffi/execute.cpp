#include "src/ffi/execute.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <variant>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>

namespace tessera::python {
namespace {

namespace ffi = tvm::ffi;

// The alignment that the library requires of workspaces and schedules.
constexpr std::int64_t kAlignment = 128;

Device device_in(const AttentionProblem& problem) { return problem.q.device; }
Device device_in(const AttentionBackwardProblem& problem) { return problem.forward.q.device; }
Device device_in(const MergeStatesProblem& problem) { return problem.out.device; }
template <class Product>
Device device_in(const Product& problem) {
  const Operand& a = problem.a;
  return a.is_sparse() ? a.sparse.values.device : a.dense.device;
}

}  // namespace

void* Scratch::allocate(std::int64_t bytes) {
  const std::int64_t size = bytes + kAlignment;
  void* data = nullptr;
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr) {
    host_.push_back(std::make_unique<std::byte[]>(static_cast<std::size_t>(size)));
    data = host_.back().get();
  } else {
    const bool on_gpu = device_.kind == DeviceKind::cuda;
    framework_.push_back(ffi::Tensor::FromEnvAlloc(
        TVMFFIEnvTensorAlloc, ffi::ShapeView(&size, 1), DLDataType{kDLUInt, 8, 1},
        DLDevice{on_gpu ? kDLCUDA : kDLCPU, device_.index}));
    data = framework_.back().data_ptr();
  }
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  return static_cast<char*>(data) + (aligned - address);
}

ScratchSource Scratch::source() {
  return {[](void* scratch, std::int64_t bytes) {
            return static_cast<Scratch*>(scratch)->allocate(bytes);
          },
          this, /*after_kept=*/true};
}

std::string message_of(const Error& error) {
  std::string message = error.what();
  if (error.code() == ErrorCode::io) return message;  // contains file names
  static constexpr std::array<std::array<const char*, 2>, 7> kNames{{
      {"epilogue.", ""},
      {".sparse.", "."},
      {"mask.full.", "mask.full_"},
      {"mask.partial.", "mask.partial_"},
      {"forward.", ""},
      {"a.scale", "a_scale"},
      {"b.scale", "b_scale"},
  }};
  for (const auto& [path, name] : kNames) {
    for (std::size_t at = 0; (at = message.find(path, at)) != std::string::npos;)
      message.replace(at, std::strlen(path), name);
  }
  return message;
}

const char* exception_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "ValueError";
    case ErrorCode::unsupported:
      return "NotImplementedError";
    case ErrorCode::out_of_memory:
      return "MemoryError";
    case ErrorCode::io:
      return "OSError";
    case ErrorCode::device:
      return "RuntimeError";
  }
  return "RuntimeError";
}

Device device_of(const AnyProblem& problem) {
  return std::visit([](const auto& p) { return device_in(p); }, problem);
}

Execution on_current_stream(const Call& call) {
  return on_current_stream(device_of(call.problem), call.execution);
}

Execution on_current_stream(const Device& device, Execution execution) {
  if (device.kind == DeviceKind::cuda) execution.stream = TVMFFIEnvGetStream(kDLCUDA, device.index);
  return execution;
}

void execute(const Call& call) {
  const Device device = device_of(call.problem);
  Scratch scratch(device);
  Execution execution = on_current_stream(device, call.execution);
  execution.scratch = scratch.source();
  run(call.problem, execution);
}

}  // namespace tessera::python
