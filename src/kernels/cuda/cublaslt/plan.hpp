#pragma once

#include <cstdint>

#include "src/kernels/family.hpp"

namespace tessera::planning {

/// The algorithm is no part of it: cuBLASLt is asked at the first run, as planning needs neither a
/// GPU nor the library.
struct CublasLtLayout {
  std::int64_t workspace = 0;  // bytes: the maximum that an algorithm may use
};

KernelFamily sm80_cublaslt_family();

}  // namespace tessera::planning
