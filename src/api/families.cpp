#include "src/api/families.hpp"

#include <vector>

#include "src/kernels/cpu/backend.hpp"
#include "src/kernels/families.hpp"
#if defined(TESSERA_CUDA)
#include "src/kernels/cuda/backend.hpp"
#endif

namespace tessera {

std::vector<Backend> built_backends() {
#if defined(TESSERA_CUDA)
  std::vector<Backend> built{Backend::cpu};
  for (const Backend backend : {Backend::sm80, Backend::sm90})
    if (cuda::has_backend(backend)) built.push_back(backend);
  return built;
#else
  return {Backend::cpu};
#endif
}

namespace api {

planning::Families families() {
  static const std::vector<planning::KernelFamily> all = [] {
    const auto planned = planning::all_families();
    std::vector<planning::KernelFamily> list(planned.begin(), planned.end());
    for (planning::KernelFamily& family : list) {
      if (family.backend == Backend::cpu) {
        family.prepare = cpu::prepare;
        family.launch = cpu::launch;
      }
#if defined(TESSERA_CUDA)
      if (family.backend != Backend::cpu) cuda::complete(family);
#endif
    }
    return list;
  }();
  return all;
}

}  // namespace api
}  // namespace tessera
