#include <array>

#include <tessera/device.hpp>
#include <tessera/error.hpp>

namespace tessera {
namespace {

constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

struct Preset {
  const char* name;
  const char* full_name;
  DeviceKind kind;
  int compute_capability;
  int units;
  std::int64_t shared_bytes_per_block, l2_bytes, memory_bytes;
  double clock_ghz, tensor_tflops, memory_tbs, l2_tbs;
  const char* simd;
};

// Nominal numbers are from the vendor's data sheet; measured ones are our own (docs/measuring.md).
// A rate of 0 is unknown, and the cost model ignores it.
constexpr std::array kPresets{
    // Rates measured (wgmma on random bf16 operands, HBM read, bulk copies from L2); the rest
    // nominal.
    Preset{.name = "h100",
           .full_name = "NVIDIA H100 80GB SXM",
           .kind = DeviceKind::cuda,
           .compute_capability = 90,
           .units = 132,
           .shared_bytes_per_block = 227 * kKiB,
           .l2_bytes = 50 * kMiB,
           .memory_bytes = 80 * kGiB,
           .clock_ghz = 1.98,
           .tensor_tflops = 970,
           .memory_tbs = 3.1,
           .l2_tbs = 7.66,
           .simd = ""},
    // As for the H100: the H200 is the same chip with more and faster memory.
    Preset{.name = "h200",
           .full_name = "NVIDIA H200 141GB SXM",
           .kind = DeviceKind::cuda,
           .compute_capability = 90,
           .units = 132,
           .shared_bytes_per_block = 227 * kKiB,
           .l2_bytes = 60 * kMiB,
           .memory_bytes = 141'000'000'000,
           .clock_ghz = 1.98,
           .tensor_tflops = 970,
           .memory_tbs = 4.46,
           .l2_tbs = 7.66,
           .simd = ""},
    // Nominal.
    Preset{.name = "a100",
           .full_name = "NVIDIA A100 80GB SXM",
           .kind = DeviceKind::cuda,
           .compute_capability = 80,
           .units = 108,
           .shared_bytes_per_block = 163 * kKiB,
           .l2_bytes = 40 * kMiB,
           .memory_bytes = 80 * kGiB,
           .clock_ghz = 1.41,
           .tensor_tflops = 312,
           .memory_tbs = 2.04,
           .l2_tbs = 0,
           .simd = ""},
    // Nominal.
    Preset{.name = "l4",
           .full_name = "NVIDIA L4",
           .kind = DeviceKind::cuda,
           .compute_capability = 89,
           .units = 58,
           .shared_bytes_per_block = 99 * kKiB,
           .l2_bytes = 48 * kMiB,
           .memory_bytes = 24 * kGiB,
           .clock_ghz = 2.04,
           .tensor_tflops = 121,
           .memory_tbs = 0.3,
           .l2_tbs = 0,
           .simd = ""},
    // Nominal.
    Preset{.name = "l40s",
           .full_name = "NVIDIA L40S",
           .kind = DeviceKind::cuda,
           .compute_capability = 89,
           .units = 142,
           .shared_bytes_per_block = 99 * kKiB,
           .l2_bytes = 96 * kMiB,
           .memory_bytes = 48 * kGiB,
           .clock_ghz = 2.52,
           .tensor_tflops = 362,
           .memory_tbs = 0.864,
           .l2_tbs = 0,
           .simd = ""},
    // Nominal; the rate is that of accumulation in fp32.
    Preset{.name = "rtx4090",
           .full_name = "NVIDIA GeForce RTX 4090",
           .kind = DeviceKind::cuda,
           .compute_capability = 89,
           .units = 128,
           .shared_bytes_per_block = 99 * kKiB,
           .l2_bytes = 72 * kMiB,
           .memory_bytes = 24 * kGiB,
           .clock_ghz = 2.52,
           .tensor_tflops = 165,
           .memory_tbs = 1.008,
           .l2_tbs = 0,
           .simd = ""},
    // Nominal.
    Preset{.name = "b200",
           .full_name = "NVIDIA B200",
           .kind = DeviceKind::cuda,
           .compute_capability = 100,
           .units = 148,
           .shared_bytes_per_block = 227 * kKiB,
           .l2_bytes = 126 * kMiB,
           .memory_bytes = 180 * kGiB,
           .clock_ghz = 1.965,
           .tensor_tflops = 2250,
           .memory_tbs = 8.0,
           .l2_tbs = 0,
           .simd = ""},
    // Nominal: a plain desktop of eight cores and two channels of memory.
    Preset{.name = "cpu",
           .full_name = "CPU: AVX2, 8 threads",
           .kind = DeviceKind::cpu,
           .compute_capability = 0,
           .units = 8,
           .shared_bytes_per_block = 0,
           .l2_bytes = 16 * kMiB,
           .memory_bytes = 16 * kGiB,
           .clock_ghz = 3.0,
           .tensor_tflops = 0,
           .memory_tbs = 0.04,
           .l2_tbs = 0,
           .simd = "avx2"},
};

}  // namespace

std::vector<std::string> device_presets() {
  std::vector<std::string> names;
  names.reserve(kPresets.size());
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  return names;
}

DeviceFacts device_preset(const std::string& name) {
  std::string accepted;
  for (const Preset& p : kPresets) {
    if (name == p.name) {
      return {p.full_name,
              p.kind,
              p.compute_capability,
              p.units,
              p.shared_bytes_per_block,
              p.l2_bytes,
              p.memory_bytes,
              p.clock_ghz,
              p.tensor_tflops,
              p.memory_tbs,
              p.l2_tbs,
              p.simd};
    }
    accepted += (accepted.empty() ? "" : ", ") + std::string(p.name);
  }
  throw Error(ErrorCode::invalid_argument,
              "device: expected one of " + accepted + ", got \"" + name + "\"");
}

}  // namespace tessera
