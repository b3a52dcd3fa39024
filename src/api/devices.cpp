#include <tessera/device.hpp>
#include <tessera/error.hpp>

#include "src/kernels/cpu/backend.hpp"
#if defined(TESSERA_CUDA)
#include "src/kernels/cuda/backend.hpp"
#endif

namespace tessera {

int cuda_device_count() {
#if defined(TESSERA_CUDA)
  return cuda::device_count();
#else
  return 0;
#endif
}

std::string cublaslt_version() {
#if defined(TESSERA_CUDA)
  return cuda::cublaslt_version();
#else
  return {};
#endif
}

DeviceFacts device_facts(const Device& device) {
  if (device.kind == DeviceKind::cpu) return cpu::device_facts();
#if defined(TESSERA_CUDA)
  return cuda::device_facts(device.index);
#else
  throw Error(ErrorCode::device,
              "device: " + to_string(device) +
                  ": this build has no GPU backend; configure with TESSERA_CUDA=ON");
#endif
}

}  // namespace tessera
