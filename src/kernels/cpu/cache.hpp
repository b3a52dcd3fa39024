#pragma once

#include "src/walk/cache_rows.hpp"

// Caches of keys and values in host memory. Arguments have been checked before.
namespace tessera::cpu {

void append(const planning::AppendShape& shape, int threads);

}  // namespace tessera::cpu
