#pragma once

#include "src/kernels/family.hpp"

namespace tessera::planning {

KernelFamily sm90_spgemm_family();

}  // namespace tessera::planning
