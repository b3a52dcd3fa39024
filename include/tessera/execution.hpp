#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tessera/export.hpp>

namespace tessera {

/// A set of kernels for one kind of device: `cpu`, `sm80` (every tensor-core GPU since Ampere) or
/// `sm90` (Hopper).
enum class Backend : std::uint8_t { cpu, sm80, sm90 };

/// The enumerator's name: "cpu", "sm80", "sm90".
TESSERA_EXPORT const char* to_string(Backend backend);
/// Parses "cpu", "sm80" or "sm90". Throws `Error` for any other name.
TESSERA_EXPORT Backend parse_backend(const std::string& name);
/// The backends that this build contains.
TESSERA_EXPORT std::vector<Backend> built_backends();

/// Memory that the caller owns: on the problem's device, aligned to 128 bytes.
struct Buffer {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

/// An allocator for the workspace and the schedule of a call, such as a framework's caching
/// allocator. The caller frees the memory.
struct ScratchSource {
  /// Returns at least `bytes` on the problem's device, aligned to 128 bytes. The memory must stay
  /// valid until the call's work on the stream is done. Null: the library allocates.
  void* (*allocate)(void* context, std::int64_t bytes) = nullptr;
  void* context = nullptr;  ///< passed to `allocate`
  bool after_kept = false;  ///< asked only where the library has no kept buffer
};

/// How a call runs: the stream, its buffers, and choices that selection otherwise makes.
struct Execution {
  void* stream = nullptr;  ///< the cudaStream_t to launch on; the CPU backend ignores it
  /// Scratch memory of at least `Plan::workspace_bytes`. Empty: taken from `scratch`, or allocated
  /// by the library. On a GPU it keeps buffers of up to 32 MiB for later calls on the stream, eight
  /// in all, but none of a stream that is captured: replays of the graph may run beside those.
  Buffer workspace{};
  /// The buffer of at least `Plan::schedule_bytes` that `prepare` fills and `run` reads. Calls
  /// without a plan (`attention`, `matmul`, ...) allocate it if it is empty.
  Buffer schedule{};
  std::optional<Backend> backend{};  ///< use this backend only; empty: any
  /// Use the kernel row of this name only. Empty: the fastest row by the cost model.
  std::string kernel{};
  int threads = 0;  ///< CPU backend; 0: one per core, or OMP_NUM_THREADS
  /// Bytes of dense copies of block-sparse operands that `plan` may put into the schedule of a
  /// matmul, where the dense product has the shorter predicted time; 0: none. Such a plan has
  /// `Plan::expanded_bytes`. Calls without a plan ignore it: they would expand at every call.
  std::int64_t expand_bytes = 0;
  ScratchSource scratch{};  ///< allocates the workspace and schedule that are empty above
};

}  // namespace tessera
