#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include <tessera/error.hpp>

namespace tessera::cuda {

/// Every call into the runtime goes through here: a failure becomes an `Error` that names the call,
/// and the kernel that the call is about.
inline void check(cudaError_t status, const char* call, const char* kernel = nullptr) {
  if (status == cudaSuccess) return;
  throw Error(ErrorCode::device,
              std::string(call) + (kernel ? "(" + std::string(kernel) + ")" : "") + ": " +
                  cudaGetErrorName(status) + " (" + cudaGetErrorString(status) + ")");
}

/// Multiprocessors of the current device.
inline int sm_count() {
  int device = 0, units = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return units;
}

/// Makes a device current and gives the caller's back at the end of the scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    // Also where it is the current one: a thread that has made no call yet has no context, which
    // the driver's own functions (tensor maps) miss.
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
