#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tessera/export.hpp>

namespace tessera {

/// Where kernels live. `sm80` runs on every tensor-core GPU since Ampere, `sm90` on Hopper.
enum class Backend : std::uint8_t { cpu, sm80, sm90 };

TESSERA_EXPORT const char* to_string(Backend backend);
TESSERA_EXPORT Backend parse_backend(const std::string& name);
/// The backends that this build contains.
TESSERA_EXPORT std::vector<Backend> built_backends();

/// Memory that the caller owns, on the device that runs, 128-byte aligned.
struct Buffer {
  void* data = nullptr;
  std::int64_t bytes = 0;
};

/// Where a call takes the memory from that it needs and the caller did not bring.
struct ScratchSource {
  /// At least `bytes` on the problem's device, 128-byte aligned, which stay the call's until its
  /// work on the stream is done. Null: the library takes its own.
  void* (*allocate)(void* context, std::int64_t bytes) = nullptr;
  void* context = nullptr;
};

/// How to run: none of it changes what is computed.
struct Execution {
  void* stream = nullptr;  ///< the cudaStream_t to launch on; the CPU backend ignores it
  Buffer workspace{};      ///< scratch of `Plan::workspace_bytes`; empty: the library takes its own
  Buffer schedule{};       ///< what `prepare` writes, `Plan::schedule_bytes`; empty: likewise
  std::optional<Backend> backend{};  ///< force one; empty: the fastest that takes the problem
  std::string kernel{};     ///< force one row by its name; empty: the tuning file's choice, or the
                            ///< cost model's
  int threads = 0;          ///< CPU backend: 0 is one a core, or as many as OMP_NUM_THREADS says
  ScratchSource scratch{};  ///< for a workspace or schedule that is empty above
};

}  // namespace tessera
