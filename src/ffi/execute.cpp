#include "src/ffi/execute.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <tuple>
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

Scratch::Scratch(std::int64_t bytes, const Device& device) : bytes_(bytes) {
  const std::int64_t size = bytes + kAlignment;
  void* data = nullptr;
  if (TVMFFIEnvGetDLPackManagedTensorAllocator() == nullptr) {
    host_ = std::make_unique<std::byte[]>(static_cast<std::size_t>(size));
    data = host_.get();
  } else {
    const bool on_gpu = device.kind == DeviceKind::cuda;
    const auto memory = ffi::Tensor::FromEnvAlloc(
        TVMFFIEnvTensorAlloc, ffi::ShapeView(&size, 1), DLDataType{kDLUInt, 8, 1},
        DLDevice{on_gpu ? kDLCUDA : kDLCPU, device.index});
    data = memory.data_ptr();
    framework_ = memory;
  }
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto aligned = (address + kAlignment - 1) / kAlignment * kAlignment;
  data_ = static_cast<char*>(data) + (aligned - address);
}

namespace {

/// What a thread keeps for its calls on a stream: as many buffers as a call has.
struct Kept {
  Device device{};
  void* stream = nullptr;
  std::array<Scratch, 2> buffers;
};

Kept& kept_for(const Device& device, void* stream) {
  thread_local std::array<Kept, 4> kept;
  thread_local std::size_t next = 0;
  for (Kept& one : kept)
    if (one.stream == stream && one.device == device) return one;
  // The memory of another stream may go: its framework gives it out again in that stream's order.
  Kept& one = kept[next++ % kept.size()];
  one = {device, stream, {}};
  return one;
}

}  // namespace

void* CallScratch::allocate(std::int64_t bytes) {
  constexpr std::int64_t kMinKept = std::int64_t{1} << 16, kMaxKept = std::int64_t{1} << 25;
  const std::size_t place = taken_++;
  if (device_.kind == DeviceKind::cuda && bytes <= kMaxKept &&
      place < std::tuple_size_v<decltype(Kept::buffers)> && !is_capturing(device_, stream_)) {
    Scratch& buffer = kept_for(device_, stream_).buffers[place];
    if (buffer.bytes() < bytes) {
      buffer = {};  // first, so that its memory can serve the larger one
      const auto size = std::bit_ceil(static_cast<std::uint64_t>(std::max(bytes, kMinKept)));
      buffer = Scratch(static_cast<std::int64_t>(size), device_);
    }
    return buffer.data();
  }
  return own_.emplace_back(bytes, device_).data();
}

ScratchSource CallScratch::source() {
  return {[](void* scratch, std::int64_t bytes) {
            return static_cast<CallScratch*>(scratch)->allocate(bytes);
          },
          this};
}

std::string message_of(const Error& error) {
  std::string message = error.what();
  if (error.code() == ErrorCode::io) return message;  // contains file names
  static constexpr std::array<std::array<const char*, 2>, 5> kNames{{
      {"epilogue.", ""},
      {".sparse.", "."},
      {"mask.full.", "mask.full_"},
      {"mask.partial.", "mask.partial_"},
      {"forward.", ""},
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
  Execution execution = on_current_stream(device, call.execution);
  CallScratch scratch(device, execution.stream);
  execution.scratch = scratch.source();
  run(call.problem, execution);
}

}  // namespace tessera::python
