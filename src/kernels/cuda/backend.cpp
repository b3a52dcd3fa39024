#include "src/kernels/cuda/backend.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <mutex>
#include <string>
#include <variant>

#include "src/kernels/cuda/common/check.hpp"
#include "src/kernels/cuda/common/row_launcher.hpp"
#include "src/kernels/cuda/cublaslt/launch.hpp"

namespace tessera::cuda {
namespace {

std::int64_t attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, index), "cudaDeviceGetAttribute");
  return value;
}

/// Dense 16-bit FLOPs per SM and clock.
double tensor_flops_per_clock(int compute_capability) {
  if (compute_capability >= 100 && compute_capability < 120) return 8192;
  if (compute_capability >= 90 && compute_capability < 100) return 4096;
  return compute_capability == 80 ? 2048 : 1024;
}

/// Replaces nominal ceilings by the measured ones of the preset for this GPU model, if there is
/// one.
void take_measured_ceilings(DeviceFacts& facts) {
  for (const std::string& preset : device_presets()) {
    std::string model = preset;
    std::transform(model.begin(), model.end(), model.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    const DeviceFacts known = device_preset(preset);
    if (known.compute_capability != facts.compute_capability) continue;
    // "L4" must not match "L40S".
    const std::size_t at = facts.name.find(model);
    if (at == std::string::npos) continue;
    const std::size_t end = at + model.size();
    if (end < facts.name.size() && std::isalnum(static_cast<unsigned char>(facts.name[end])))
      continue;
    facts.tensor_tflops = known.tensor_tflops;
    facts.memory_tbs = known.memory_tbs;
    facts.l2_tbs = known.l2_tbs;
  }
}

DeviceFacts read_facts(int index) {
  const int count = device_count();
  if (index < 0 || index >= count) {
    throw Error(ErrorCode::device, "device: cuda:" + std::to_string(index) +
                                       " does not exist, the driver reports " +
                                       std::to_string(count) + " GPUs");
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");

  DeviceFacts facts;
  facts.name = properties.name;
  facts.kind = DeviceKind::cuda;
  facts.compute_capability = properties.major * 10 + properties.minor;
  facts.units = properties.multiProcessorCount;
  facts.shared_bytes_per_block = static_cast<std::int64_t>(properties.sharedMemPerBlockOptin);
  facts.l2_bytes = properties.l2CacheSize;
  facts.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  facts.clock_ghz = static_cast<double>(attribute(cudaDevAttrClockRate, index)) * 1e-6;
  facts.tensor_tflops =
      tensor_flops_per_clock(facts.compute_capability) * facts.units * facts.clock_ghz * 1e-3;
  // Two transfers per clock; the bus width is in bits.
  facts.memory_tbs = 2.0 * static_cast<double>(attribute(cudaDevAttrMemoryClockRate, index)) *
                     static_cast<double>(properties.memoryBusWidth) / 8 * 1e-9;
  // 64 bytes per clock and SM is the most that L2 delivers on Ampere and Hopper.
  facts.l2_tbs = 64.0 * facts.units * facts.clock_ghz * 1e-3;
  take_measured_ceilings(facts);
  return facts;
}

const RowLauncher* launcher_of(const planning::KernelRow& row) {
  for (const RowLauncher& one : launchers())
    if (one.row == &row) return &one;
  return nullptr;
}

}  // namespace

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
    cudaGetLastError();  // "no GPU" is a valid answer: clear the error
    return 0;
  }
  check(status, "cudaGetDeviceCount");
  return count;
}

DeviceFacts device_facts(int index) {
  // Device properties do not change, and querying the driver takes a millisecond.
  static std::mutex mutex;
  static std::map<int, DeviceFacts> known;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  return known.emplace(index, read_facts(index)).first->second;
}

void* allocate(std::int64_t bytes, int device, void* stream) {
  const DeviceGuard guard(device);
  void* memory = nullptr;
  const cudaError_t status =
      cudaMallocAsync(&memory, static_cast<std::size_t>(bytes), static_cast<cudaStream_t>(stream));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clear the error: the caller may retry with less
    throw Error(ErrorCode::out_of_memory, "execution: workspace: no memory for " +
                                              std::to_string(bytes) +
                                              " bytes on cuda:" + std::to_string(device));
  }
  check(status, "cudaMallocAsync");
  return memory;
}

void release(void* memory, int device, void* stream) noexcept {
  // Also called during stack unwinding. Errors are ignored: an earlier call has reported them.
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess) return;
  if (before != device) cudaSetDevice(device);
  cudaFreeAsync(memory, static_cast<cudaStream_t>(stream));
  if (before != device) cudaSetDevice(before);
}

std::optional<std::uint64_t> uncaptured_stream(int device, void* stream) {
  const DeviceGuard guard(device);
  const auto on = static_cast<cudaStream_t>(stream);
  auto status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamIsCapturing(on, &status) != cudaSuccess) {
    cudaGetLastError();  // the legacy stream while another one is captured: clear the error
    return std::nullopt;
  }
  if (status != cudaStreamCaptureStatusNone) return std::nullopt;
  check(cudaStreamGetId(on, &id), "cudaStreamGetId");
  return id;
}

std::string cublaslt_version() { return cublaslt::version(); }

bool has_backend(Backend backend) {
  return backend == Backend::sm80 || (backend == Backend::sm90 && TESSERA_HAS_SM90 != 0);
}

void complete(planning::KernelFamily& family) {
  if (!has_backend(family.backend)) return;
  family.prepare = prepare;
  family.launch = launch;
  for (const planning::KernelRow& row : family.rows) {
    const RowLauncher* launcher = launcher_of(row);
    if (!launcher) continue;
    family.missing = launcher->missing;
    family.workspace = launcher->workspace;
  }
}

void launch(const planning::Call& call) {
  const RowLauncher* launcher = launcher_of(*call.planned.row);
  if (!launcher) {
    throw Error(ErrorCode::unsupported, std::string("run: this build has no kernel '") +
                                            call.planned.row->name +
                                            "': configure with a TESSERA_KERNELS that matches it");
  }
  const DeviceGuard guard(planning::device_of(call.shape).index);
  launcher->launch(call);
}

}  // namespace tessera::cuda
