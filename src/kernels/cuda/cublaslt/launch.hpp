#pragma once

#include <cstdint>

#include "src/kernels/family.hpp"

// What cmake/TesseraCuda.cmake binds to the rows: this folder launches in plain C++.
namespace tessera::cuda::cublaslt {

void launch(const planning::Call& call);

/// The bytes of workspace that the chosen algorithm needs: most need none.
std::int64_t workspace(const planning::Call& call);

/// Why products can't run by cuBLASLt in this process; null where they can. Loads the library.
const char* missing();

/// The version of the library that is loaded, as "13.1.0"; empty where there is none.
const char* version();

}  // namespace tessera::cuda::cublaslt
