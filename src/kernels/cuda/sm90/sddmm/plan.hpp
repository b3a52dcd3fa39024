#pragma once

#include "src/kernels/family.hpp"

namespace tessera::planning {

KernelFamily sm90_sddmm_family();

}  // namespace tessera::planning
