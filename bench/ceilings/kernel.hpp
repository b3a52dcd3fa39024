#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

// What python/tessera/bench/ceilings.py launches and times: its class Kernel has the same fields.
namespace tessera::ceilings {

struct Kernel {
  const char* name;
  const char* dtype;       // of its data, random normal numbers: zeros take less power
  std::size_t data_bytes;  // in the card's memory
  std::size_t out_bytes;   // that each thread block writes
  double amount;           // of one repetition: operations of a thread block, or bytes
  /// Puts so many repetitions into a stream, on one thread block per SM.
  cudaError_t (*launch)(const void* data, void* out, unsigned sms, int repeats,
                        cudaStream_t stream);
};

}  // namespace tessera::ceilings

// The kernels of each file, ended by one without a name.
#define TESSERA_CEILINGS(part)                      \
  extern "C" __attribute__((visibility("default"))) \
  const tessera::ceilings::Kernel* part##_kernels()
