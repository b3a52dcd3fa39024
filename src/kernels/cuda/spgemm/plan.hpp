#pragma once

#include "src/kernels/family.hpp"

namespace tessera::planning {

KernelFamily sm80_spgemm_family();

// What all GPU kernels of sparse times sparse share.
void refuse_gpu_spgemm(const SpgemmShape& shape, Reasons& reasons);
/// The lists of a transposed a are written anew.
BufferSizes gpu_spgemm_buffers(const SpgemmShape& shape);

}  // namespace tessera::planning
