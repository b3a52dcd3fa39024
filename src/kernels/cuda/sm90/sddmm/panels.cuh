#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// How an operand lies in a stage if its rows or columns were gathered in pieces narrower than 64.
//
// Major::k: a piece is a set of lines, each 64 deep; pieces follow each other as in one tile.
// Major::mn: a piece is a panel, 64 deep, with lines as wide as the piece and a swizzle of the same
// width; wgmma strides from panel to panel. Either way a piece of width w occupies w * 128 bytes,
// and row or column x begins at x * 128 bytes.
namespace tessera::cuda::sm90::sddmm {

using tile::Major;

/// The wgmma descriptor of such an operand without the address, and its increment for the depth of
/// one MMA.
struct Form {
  std::uint64_t fixed = 0;
  std::uint64_t depth_step = 0;

  /// The descriptor of the rows or columns from x on (a multiple of 64, or 0).
  __device__ std::uint64_t view(const void* operand, int x) const {
    const std::uint32_t at = tile::shared_address(operand) + x * tile::kLineBytes;
    return fixed | (at & 0x3FFFF) >> 4;
  }
};

template <class Element>
__host__ __device__ constexpr Form form_of(Major major, int piece) {
  using Facts = Precision<Element>;
  // Descriptor fields are in units of 16 bytes; modes 1 to 3 are swizzles of 128, 64 and 32 bytes.
  // An atom is 8 lines.
  const int line = major == Major::k ? tile::kLineBytes : piece * Facts::kBytes;
  const std::uint64_t mode = line == 128 ? 1 : line == 64 ? 2 : 3;
  const std::uint64_t panel =
      major == Major::k ? 0 : static_cast<unsigned>(Facts::kLine * line) >> 4;
  const std::uint64_t atom = static_cast<unsigned>(8 * line) >> 4;
  return {
      mode << 62 | atom << 32 | panel << 16,
      static_cast<unsigned>(Facts::kMmaDepth * (major == Major::k ? Facts::kBytes : line)) >> 4};
}

}  // namespace tessera::cuda::sm90::sddmm
