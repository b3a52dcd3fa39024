#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "src/kernels/cuda/common/check.hpp"

namespace tessera::cuda {

/// Grid dimensions, clamped to the hardware's maximum; kernels use grid-stride loops for the rest.
inline dim3 grid_of(std::int64_t x, std::int64_t y = 1, std::int64_t z = 1) {
  constexpr std::int64_t kMaxX = 0x7fffffff, kMax = 0xffff;
  return dim3(static_cast<unsigned>(std::min(x, kMaxX)), static_cast<unsigned>(std::min(y, kMax)),
              static_cast<unsigned>(std::min(z, kMax)));
}

/// Configuration of one launch. Nothing is launched if a grid dimension is 0.
struct Launch {
  const char* name;  // of the kernel, for error messages
  dim3 grid, threads;
  void* stream;
  int shared_bytes = 0;      // dynamic shared memory
  int max_shared_bytes = 0;  // maximum of all launches of the kernel, if they differ
  int cluster = 0;           // thread blocks per cluster, along x; 0: no clusters
  bool overlapped = false;   // programmatic dependent launch (common/grid.cuh)
};

/// The same as the runtime's cudaLaunchConfig_t.
class LaunchConfig {
 public:
  explicit LaunchConfig(const Launch& launch) {
    config_.gridDim = launch.grid;
    config_.blockDim = launch.threads;
    config_.dynamicSmemBytes = static_cast<std::size_t>(launch.shared_bytes);
    config_.stream = static_cast<cudaStream_t>(launch.stream);
    config_.attrs = attributes_;
    if (launch.cluster > 0) {
      cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
    }
    if (launch.overlapped) {
      cudaLaunchAttribute& attribute = attributes_[config_.numAttrs++];
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
  }
  LaunchConfig(const LaunchConfig&) = delete;  // config_ points to attributes_
  LaunchConfig& operator=(const LaunchConfig&) = delete;

  const cudaLaunchConfig_t* get() const { return &config_; }

 private:
  cudaLaunchConfig_t config_{};
  cudaLaunchAttribute attributes_[2]{};
};

/// Launches a __global__ function.
template <auto kKernel>
struct Kernel;

template <class... Parameters, void (*kKernel)(Parameters...)>
struct Kernel<kKernel> {
  static void launch(const Launch& launch, const Parameters&... arguments) {
    if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0) return;
    raise_shared_limit(launch);
    // cudaLaunchKernelEx would copy the arguments once more.
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
    check(cudaLaunchKernelExC(LaunchConfig(launch).get(), address(), pointers),
          "cudaLaunchKernelExC", launch.name);
  }

  /// Maximum number of clusters that run at the same time.
  static int max_active_clusters(const Launch& launch) {
    raise_shared_limit(launch);
    int clusters = 0;
    check(cudaOccupancyMaxActiveClusters(&clusters, address(), LaunchConfig(launch).get()),
          "cudaOccupancyMaxActiveClusters", launch.name);
    return clusters;
  }

 private:
  static const void* address() { return reinterpret_cast<const void*>(kKernel); }

  /// Raises the kernel's limit of dynamic shared memory above 48 KiB: once per device, to the
  /// maximum of all launches, because another thread may be about to launch the kernel with more.
  static void raise_shared_limit(const Launch& launch) {
    if (launch.shared_bytes == 0) return;
    static std::atomic<std::uint64_t> raised{0};  // one bit per device
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    const std::uint64_t bit = device < 64 ? std::uint64_t{1} << device : 0;  // beyond: every time
    if (raised.load(std::memory_order_acquire) & bit) return;
    check(cudaFuncSetAttribute(address(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               std::max(launch.shared_bytes, launch.max_shared_bytes)),
          "cudaFuncSetAttribute", launch.name);
    raised.fetch_or(bit, std::memory_order_release);
  }
};

}  // namespace tessera::cuda
