// Memory that the host reads and writes, and the chosen device too: managed memory where that is a
// GPU, so that the example needs no copies. It lives as long as its owner.
#pragma once

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <vector>

#include <tessera/tessera.hpp>

#ifdef EXAMPLE_CUDA
#include <cuda_runtime_api.h>
#endif

class Memory {
 public:
  explicit Memory(tessera::Device device) : device_(device) {}

  tessera::Tensor tensor(tessera::DType dtype, std::initializer_list<std::int64_t> shape) {
    tessera::Tensor made = tessera::tensor(nullptr, dtype, shape, device_);
    made.data = allocate(made.numel() * tessera::size_of(dtype));
    return made;
  }
  tessera::Tensor copy(tessera::Tensor from) {
    const std::int64_t bytes = from.numel() * tessera::size_of(from.dtype);
    void* data = allocate(bytes);
    if (bytes > 0) std::memcpy(data, from.data, static_cast<std::size_t>(bytes));
    from.data = data;
    from.device = device_;
    return from;
  }
  tessera::Buffer buffer(std::int64_t bytes) { return {allocate(bytes), bytes}; }

  /// Until the device has done what it was given: `run` only enqueues there.
  void wait() const {
#ifdef EXAMPLE_CUDA
    if (device_.kind == tessera::DeviceKind::cuda && cudaDeviceSynchronize() != cudaSuccess)
      throw tessera::Error(tessera::ErrorCode::device, "cudaDeviceSynchronize failed");
#endif
  }

 private:
  void* allocate(std::int64_t bytes) {
    if (bytes == 0) return nullptr;
    void* data = nullptr;
    void (*release)(void*) = std::free;
#ifdef EXAMPLE_CUDA
    if (device_.kind == tessera::DeviceKind::cuda) {
      if (cudaMallocManaged(&data, static_cast<std::size_t>(bytes)) != cudaSuccess) data = nullptr;
      release = [](void* memory) { cudaFree(memory); };
    } else
#endif
      data = std::aligned_alloc(128, static_cast<std::size_t>((bytes + 127) / 128 * 128));
    if (data == nullptr)
      throw tessera::Error(tessera::ErrorCode::out_of_memory,
                           "no memory for the example's tensors");
    owned_.emplace_back(data, release);
    return data;
  }

  tessera::Device device_;
  std::vector<std::unique_ptr<void, void (*)(void*)>> owned_;
};
