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

/// How to run: none of it changes what is computed.
struct Execution {
  void* stream = nullptr;  ///< the cudaStream_t to launch on; the CPU backend ignores it
  Buffer workspace{};      ///< scratch of `Plan::workspace_bytes`; empty: the library takes its own
  Buffer schedule{};       ///< what `prepare` writes, `Plan::schedule_bytes`; empty: likewise
  std::optional<Backend> backend{};  ///< force one; empty: the fastest that takes the problem
  std::string kernel{};  ///< force one row by its name; empty: the tuning file's choice, or the
                         ///< cost model's
  int threads = 0;       ///< CPU backend: 0 is one a core, or as many as OMP_NUM_THREADS says
};

}  // namespace tessera
