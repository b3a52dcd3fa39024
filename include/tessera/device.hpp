#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tessera/execution.hpp>
#include <tessera/export.hpp>
#include <tessera/tensor.hpp>

namespace tessera {

/// What planning needs to know of a device. Presets stand for devices that are not here.
struct DeviceFacts {
  std::string name;  ///< "NVIDIA H100 80GB SXM", "CPU: AVX-512, 8 threads"
  DeviceKind kind = DeviceKind::cpu;
  int compute_capability = 0;               ///< 80, 89, 90, 100; 0 for a CPU
  int units = 0;                            ///< streaming multiprocessors, or threads of a CPU
  std::int64_t shared_bytes_per_block = 0;  ///< the opt-in limit of one thread block
  std::int64_t l2_bytes = 0;                ///< L2 of a GPU; the last level cache of a CPU
  std::int64_t memory_bytes = 0;
  double clock_ghz = 0;      ///< boost clock
  double tensor_tflops = 0;  ///< dense 16-bit ceiling, measured where we could, else nominal
  double memory_tbs = 0;     ///< read bandwidth, likewise
  double l2_tbs = 0;         ///< L2 to shared memory
  std::string simd;          ///< CPU: "sse4", "avx2", "avx512", "neon", "scalar"
};

/// Names that `device_preset` knows: "h100", "h200", "a100", "l4", "b200", "cpu".
TESSERA_EXPORT std::vector<std::string> device_presets();
/// Throws `Error` listing the names for any other.
TESSERA_EXPORT DeviceFacts device_preset(const std::string& name);
/// The machine's own CPU, or the GPU `device.index`; throws `Error` where there is none.
TESSERA_EXPORT DeviceFacts device_facts(const Device& device);
/// GPUs that the driver shows; 0 in a build without CUDA.
TESSERA_EXPORT int cuda_device_count();
/// The version of cuBLASLt that dense products may run by, as "13.1.0"; empty in a build without
/// CUDA and where the library is not found. Looks for it as the first dense product does.
TESSERA_EXPORT std::string cublaslt_version();

}  // namespace tessera
