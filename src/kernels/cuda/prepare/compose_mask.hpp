#pragma once

#include "src/walk/compose_mask.hpp"

namespace tessera::cuda {

/// Writes a mask's composed lists, on the current device. Never synchronises; a graph replay reads
/// the given lists again.
void compose_mask(const planning::MaskComposer& composer, void* stream);

}  // namespace tessera::cuda
