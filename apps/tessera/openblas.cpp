#include "apps/tessera/openblas.hpp"

#include <dlfcn.h>

namespace tessera::tool {

OpenBlas::OpenBlas(int threads) {
  // Never closed: its threads live as long as the process.
  void* library = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* reason = dlerror();
    unavailable_ = std::string(reason ? reason : "libopenblas.so.0 could not be opened") +
                   "; on Debian: apt install libopenblas0";
    return;
  }
  sgemm_ = reinterpret_cast<Sgemm>(dlsym(library, "cblas_sgemm"));
  if (!sgemm_) {
    unavailable_ = "libopenblas.so.0 has no cblas_sgemm";
    return;
  }
  if (void* set = dlsym(library, "openblas_set_num_threads"))
    reinterpret_cast<void (*)(int)>(set)(threads);
  if (void* config = dlsym(library, "openblas_get_config"))
    version_ = reinterpret_cast<const char* (*)()>(config)();
}

void OpenBlas::sgemm(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
                     float* out) const {
  constexpr int kRowMajor = 101, kAsItIs = 111;
  const int rows = static_cast<int>(m), cols = static_cast<int>(n), inner = static_cast<int>(k);
  sgemm_(kRowMajor, kAsItIs, kAsItIs, rows, cols, inner, 1.0f, a, inner, b, cols, 0.0f, out, cols);
}

}  // namespace tessera::tool
