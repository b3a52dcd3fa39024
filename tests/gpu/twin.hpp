#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include <tessera/tensor.hpp>

namespace tessera::gpu_test {

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(status));
  }
}

/// Host memory and memory of the same size on GPU 0. Tensors are carved as host views; the GPU's
/// view of a tensor has the same offset. Comparing all memory shows writes outside the outputs.
class Twin {
 public:
  explicit Twin(std::size_t bytes) : host_(bytes, std::byte{0xA5}) {
    check(cudaMalloc(&device_, bytes), "cudaMalloc");
  }
  ~Twin() { cudaFree(device_); }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;

  /// `elements`: the number of elements that the strides span.
  void* carve(DType dtype, std::int64_t elements) {
    // Aligned only to the element, so that kernels cannot rely on more.
    const auto size = static_cast<std::size_t>(size_of(dtype));
    used_ = (used_ / size + 3) * size;
    void* piece = host_.data() + used_;
    used_ += static_cast<std::size_t>(elements) * size;
    if (used_ > host_.size()) throw std::runtime_error("Twin is too small for this test");
    return piece;
  }

  Tensor on_device(Tensor host) const {
    if (!host) return host;
    host.data = static_cast<std::byte*>(device_) + offset(host);
    host.device = {DeviceKind::cuda, 0};
    return host;
  }
  /// The same tensor inside a copy of all memory.
  Tensor inside(Tensor host, std::vector<std::byte>& copy) const {
    if (host) host.data = copy.data() + offset(host);
    return host;
  }

  void upload() {
    check(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  std::vector<std::byte> download() const {
    std::vector<std::byte> copy(host_.size());
    check(cudaMemcpy(copy.data(), device_, copy.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return copy;
  }
  const std::vector<std::byte>& host() const { return host_; }

 private:
  std::ptrdiff_t offset(const Tensor& host) const {
    return static_cast<const std::byte*>(host.data) - host_.data();
  }

  std::vector<std::byte> host_;
  std::size_t used_ = 0;
  void* device_ = nullptr;
};

}  // namespace tessera::gpu_test
