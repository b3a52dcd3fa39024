#include "src/api/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <string>

#include <tessera/error.hpp>

#include "src/core/carver.hpp"
#if defined(TESSERA_CUDA)
#include "src/kernels/cuda/backend.hpp"
#endif

namespace tessera::api {

namespace {

void* allocate_on_host(std::int64_t bytes) {
  // A call touches all of a large workspace once. Huge pages, if available, save page faults.
  constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
  const std::int64_t alignment = bytes >= kHugePage ? kHugePage : core::kBufferAlignment;
  const std::int64_t rounded = core::align_up(bytes, alignment);
  void* memory =
      std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(rounded));
  if (!memory) {
    throw Error(ErrorCode::out_of_memory,
                "execution: workspace: could not allocate " + std::to_string(bytes) + " bytes");
  }
#if defined(MADV_HUGEPAGE)
  if (alignment == kHugePage) madvise(memory, static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
#endif
  return memory;
}

}  // namespace

OwnedBuffer::OwnedBuffer(std::int64_t bytes, const Device& device, void* stream)
    : storage_(nullptr, Free{device, stream}), bytes_(bytes) {
  if (bytes == 0) return;
#if defined(TESSERA_CUDA)
  if (device.kind == DeviceKind::cuda) {
    storage_.reset(cuda::allocate(bytes, device.index, stream));
    return;
  }
#endif
  storage_.reset(allocate_on_host(bytes));
}

void OwnedBuffer::Free::operator()(void* p) const {
#if defined(TESSERA_CUDA)
  if (device.kind == DeviceKind::cuda) return cuda::release(p, device.index, stream);
#endif
  std::free(p);
}

/// Memory of one stream. It is never given to another: that of a stream which has ended stays.
struct KeptBuffer::Place {
  int device = 0;
  std::uint64_t stream = 0;
  Buffer memory{};
  bool taken = false;
};

#if defined(TESSERA_CUDA)
namespace {

std::mutex keeping;  // the places

}  // namespace

KeptBuffer::KeptBuffer(std::int64_t bytes, const Device& device, void* stream) {
  static std::array<Place, 8> places;
  if (bytes == 0 || bytes > kMaxBytes || device.kind != DeviceKind::cuda) return;
  const auto id = cuda::uncaptured_stream(device.index, stream);
  if (!id) return;
  const std::lock_guard lock(keeping);
  Place* found = nullptr;  // one that is large enough, else one of the stream, else an empty one
  for (Place& place : places) {
    if (place.taken) continue;
    if (!place.memory.data) {
      if (!found) found = &place;
    } else if (place.device == device.index && place.stream == *id) {
      found = &place;
      if (place.memory.bytes >= bytes) break;
    }
  }
  if (!found) return;
  if (found->memory.bytes < bytes) {
    constexpr std::int64_t kMin = std::int64_t{1} << 16;
    const auto size =
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max(bytes, kMin))));
    void* memory = nullptr;
    try {
      memory = cuda::allocate(size, device.index, stream);
    } catch (const Error&) {
      return;  // no memory here: a framework's allocator may have some
    }
    if (found->memory.data) cuda::release(found->memory.data, device.index, stream);
    *found = {device.index, *id, {memory, size}};
  }
  found->taken = true;
  taken_ = found;
}

KeptBuffer::~KeptBuffer() {
  if (!taken_) return;
  const std::lock_guard lock(keeping);
  taken_->taken = false;
}
#else
KeptBuffer::KeptBuffer(std::int64_t, const Device&, void*) {}
KeptBuffer::~KeptBuffer() = default;
#endif

Buffer KeptBuffer::view() const { return taken_ ? taken_->memory : Buffer{}; }

CallBuffer::CallBuffer(const char* name, const Buffer& given, std::int64_t bytes,
                       const Device& device, const Execution& execution)
    : kept_(given.data || (execution.scratch.allocate && !execution.scratch.after_kept) ? 0 : bytes,
            device, execution.stream),
      own_(given.data || kept_.view().data || execution.scratch.allocate ? 0 : bytes, device,
           execution.stream),
      view_(given) {
  if (!given.data && bytes > 0) {
    const ScratchSource& source = execution.scratch;
    view_ = kept_.view();
    if (!view_.data)
      view_ = source.allocate ? Buffer{source.allocate(source.context, bytes), bytes} : own_.view();
  }
  check_buffer(name, view_, bytes);
}

void check_buffer(const char* name, const Buffer& buffer, std::int64_t bytes) {
  if (bytes == 0) return;
  if (buffer.data && buffer.bytes >= bytes &&
      reinterpret_cast<std::uintptr_t>(buffer.data) % core::kBufferAlignment == 0)
    return;
  throw Error(ErrorCode::invalid_argument,
              std::string("execution: ") + name + ": expected at least " + std::to_string(bytes) +
                  " bytes aligned to " + std::to_string(core::kBufferAlignment) + ", got " +
                  (buffer.data ? std::to_string(buffer.bytes) + " bytes" : "none"));
}

void add_buffer(core::Outputs& outputs, const char* call, const char* name, const Buffer& buffer,
                std::int64_t bytes, const Device& device) {
  const std::int64_t used = std::min(buffer.bytes, bytes);
  if (!buffer.data || used <= 0) return;
  outputs.add(core::Where(call) / "execution" / name,
              tensor(buffer.data, DType::u8, {used}, device));
}

}  // namespace tessera::api
