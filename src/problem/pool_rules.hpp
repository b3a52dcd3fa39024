#pragma once

#include <cstdint>

namespace tessera::planning {

/// Kernels of one sparse side store offsets into stored blocks, or into the matrices of a batch, in
/// 32 bits, in units of 16 bytes.
inline constexpr std::int64_t kMaxPoolBytes = std::int64_t{UINT32_MAX} * 16;

}  // namespace tessera::planning
