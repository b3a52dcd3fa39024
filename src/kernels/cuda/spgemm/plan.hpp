#pragma once

#include "src/kernels/family.hpp"

namespace tessera::planning {

KernelFamily sm80_spgemm_family();

// Shared by the GPU families of spgemm.
void refuse_gpu_spgemm(const SpgemmShape& shape, Reasons& reasons);
/// Workspace for the transposed lists of a transposed A.
BufferSizes gpu_spgemm_buffers(const SpgemmShape& shape);

}  // namespace tessera::planning
