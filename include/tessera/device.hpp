#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// The properties of a device that planning uses. Presets (`device_preset`) describe devices that
/// need not be present.
struct DeviceFacts {
  std::string name;  ///< "NVIDIA H100 80GB SXM", "CPU: AVX-512, 8 threads"
  DeviceKind kind = DeviceKind::cpu;
  int compute_capability = 0;               ///< 80, 89, 90, 100; 0 for a CPU
  int units = 0;                            ///< SMs of a GPU; threads of a CPU
  std::int64_t shared_bytes_per_block = 0;  ///< opt-in shared memory limit of a thread block
  std::int64_t l2_bytes = 0;                ///< L2 of a GPU; last-level cache of a CPU
  std::int64_t memory_bytes = 0;
  double clock_ghz = 0;      ///< boost clock
  double tensor_tflops = 0;  ///< dense 16-bit TFLOP/s: measured if known, else nominal
  double memory_tbs = 0;     ///< read bandwidth in TB/s: measured if known, else nominal
  double l2_tbs = 0;         ///< bandwidth from L2 to shared memory in TB/s; 0: unknown
  std::string simd;          ///< CPU: "sse4", "avx2", "avx512", "neon", "scalar"
};

/// The names that `device_preset` accepts: "h100", "h200", "a100", "l4", "l40s", "rtx4090", "b200",
/// "cpu".
TESSERA_EXPORT std::vector<std::string> device_presets();
/// The properties of the preset with that name. Throws `Error` for an unknown name.
TESSERA_EXPORT DeviceFacts device_preset(const std::string& name);
/// The properties of this machine's CPU, or of GPU `device.index`. Throws `Error` if that GPU does
/// not exist or the build has no GPU backend.
TESSERA_EXPORT DeviceFacts device_facts(const Device& device);
/// The number of visible GPUs; 0 in a build without CUDA.
TESSERA_EXPORT int cuda_device_count();
/// The version of cuBLASLt that dense products may run by, as "13.1.0"; empty in a build without
/// CUDA and where the library is not found. Looks for it as the first dense product does.
TESSERA_EXPORT std::string cublaslt_version();

}  // namespace tessera
