#pragma once

#include <string>

#include "src/kernels/cuda/cublaslt/engine.hpp"

// cuBLASLt, found at run time: the library is never linked.
namespace tessera::cuda::cublaslt {

struct Library {
  bool found = false;
  Functions functions{};
  std::string version;  // "13.1.0"
  std::string path;     // as it was opened
  std::string missing;  // why nothing was found, in words
};

/// Looks in this order: at TESSERA_CUBLASLT, a path that has to work where it is set; at what the
/// process has loaded; where the loader looks; beside this library as pip's packages lie; in
/// /usr/local/cuda. `given`: in place of the environment's variable.
Library load_library(const char* given);

}  // namespace tessera::cuda::cublaslt
