#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

// Kernels that python/tessera/bench/ceilings.py times. Its class Kernel has the same fields.
namespace tessera::ceilings {

struct Kernel {
  const char* name;
  const char* dtype;       // of the data: random normal numbers, as zeros take less power
  std::size_t data_bytes;  // size of the data in the card's memory
  std::size_t out_bytes;   // written by each thread block
  double amount;           // per repetition: operations of a thread block, or bytes
  /// Enqueues `repeats` repetitions, with one thread block per SM.
  cudaError_t (*launch)(const void* data, void* out, unsigned sms, int repeats,
                        cudaStream_t stream);
};

}  // namespace tessera::ceilings

// The kernels of a file; an entry without a name ends the table.
#define TESSERA_CEILINGS(part)                      \
  extern "C" __attribute__((visibility("default"))) \
  const tessera::ceilings::Kernel* part##_kernels()
