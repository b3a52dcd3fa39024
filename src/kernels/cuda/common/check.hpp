#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include <tessera/error.hpp>

namespace tessera::cuda {

/// Turns the status of a CUDA runtime call into an `Error` that names the call and, if given, the
/// kernel. Every runtime call goes through this function.
inline void check(cudaError_t status, const char* call, const char* kernel = nullptr) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorNoKernelImageForDevice) {
    throw Error(
        ErrorCode::unsupported,
        std::string("this build has no code for the device, or for its driver to compile (") +
            (kernel ? kernel : call) +
            "): configure with a TESSERA_CUDA_ARCHITECTURES that names it");
  }
  throw Error(ErrorCode::device,
              std::string(call) + (kernel ? "(" + std::string(kernel) + ")" : "") + ": " +
                  cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

/// Number of SMs of the current device.
inline int sm_count() {
  int device = 0, units = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return units;
}

/// Makes a device current, and restores the caller's device at the end of the scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    // Also if it is current already: a thread that has made no call yet has no context, which
    // functions of the driver (tensor maps) need.
    check(cudaSetDevice(index), "cudaSetDevice");
    changed_ = index != before_;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace tessera::cuda
