#pragma once

#include <cstdint>
#include <string>

namespace tessera::tool {

/// OpenBLAS where this machine has it, opened at run time.
class OpenBlas {
 public:
  explicit OpenBlas(int threads);

  /// Empty where it can be used.
  const std::string& unavailable() const { return unavailable_; }
  const std::string& version() const { return version_; }
  /// out [m, n] = a [m, k] * b [k, n], contiguous rows.
  void sgemm(std::int64_t m, std::int64_t n, std::int64_t k, const float* a, const float* b,
             float* out) const;

 private:
  using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k,
                         float alpha, const float* a, int lda, const float* b, int ldb, float beta,
                         float* c, int ldc);
  Sgemm sgemm_ = nullptr;
  std::string version_, unavailable_;
};

}  // namespace tessera::tool
