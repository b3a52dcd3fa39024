#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/precision.cuh"

// A tile in shared memory, in the layout that TMA writes and wgmma reads: lines of 128 bytes with
// the 128-byte swizzle, in atoms of 8 lines.
namespace tessera::cuda::tile {

inline constexpr int kLineBytes = 128;
/// 16-bit elements per line: the width of TMA boxes and the depth of a step.
inline constexpr int kLine = 64;
/// MMAs per line of depth: each reads 32 bytes.
inline constexpr int kMmasPerLine = kLineBytes / 32;
/// Swizzled tiles are aligned to one atom.
inline constexpr int kAtomBytes = 8 * kLineBytes;

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Dynamic shared memory from the first atom boundary on. A kernel requests kAtomBytes more than it
/// needs.
template <class Shared>
__device__ __forceinline__ Shared& at_atom(char* raw) {
  const std::uint32_t skip = (kAtomBytes - shared_address(raw) % kAtomBytes) % kAtomBytes;
  return *reinterpret_cast<Shared*>(raw + skip);
}

/// The wgmma matrix descriptor of a tile (PTX ISA, "matrix descriptor"); fields are in units of 16
/// bytes. The swizzle is as wide as a line: modes 1, 2 and 3 are 128, 64 and 32 bytes.
__device__ __forceinline__ std::uint64_t descriptor(const void* start, int leading_bytes,
                                                    int stride_bytes, int line_bytes = kLineBytes) {
  const auto units = [](std::uint32_t bytes) { return std::uint64_t{(bytes & 0x3FFFF) >> 4}; };
  const std::uint64_t mode = line_bytes == 128 ? 1 : line_bytes == 64 ? 2 : 3;
  return units(shared_address(start)) | units(static_cast<std::uint32_t>(leading_bytes)) << 16 |
         units(static_cast<std::uint32_t>(stride_bytes)) << 32 | mode << 62;
}

/// The same descriptor, equal in all lanes, in a form that the compiler keeps in uniform registers,
/// where wgmma needs it.
__device__ __forceinline__ std::uint64_t uniform(std::uint64_t view) {
  const auto address = static_cast<std::uint32_t>(view);
  return (view & ~0xFFFFFFFFull) | __shfl_sync(~0u, address, 0);
}

/// The same for a descriptor that is computed before a loop that needs it. Where the address is
/// known to be equal in all lanes, the compiler drops the shuffle of `uniform`, computes the
/// descriptor in the loop, in ordinary registers, and moves four words for each MMA.
__device__ __forceinline__ std::uint64_t kept_uniform(std::uint64_t view) {
  auto address = static_cast<std::uint32_t>(view);
  asm volatile("" : "+r"(address));
  return uniform((view & ~0xFFFFFFFFull) | address);
}

/// A descriptor `offset` units of 16 bytes on. Only its low word changes, so that one addition is
/// enough: sums of 64 bits take three instructions between MMAs.
__device__ __forceinline__ std::uint64_t moved(std::uint64_t view, std::uint32_t offset) {
  return (view & ~0xFFFFFFFFull) | (static_cast<std::uint32_t>(view) + offset);
}

/// Which dimension of an operand is contiguous in memory.
enum class Major { k, mn };

/// One operand's tile of a stage: kExtent rows of A or columns of B, kLine deep. Major::k: kExtent
/// lines, each with kLine elements of depth of one row; lines of 64 bytes have the 64-byte swizzle.
/// Major::mn: panels of kLine lines, each with kLine rows or columns at one depth.
template <class Element, int kExtent, Major kMajor, int kBytesOfLine = kLineBytes>
struct OperandTile {
  static constexpr int kLine = kBytesOfLine / Precision<Element>::kBytes;
  static_assert(kBytesOfLine == kLineBytes || (kBytesOfLine == 64 && kMajor == Major::k));
  static_assert(kMajor == Major::k || Precision<Element>::kBytes == 2,
                "wgmma reads only 16-bit elements whose depth is not contiguous");
  static_assert(kExtent % (kMajor == Major::k ? 16 : kLine) == 0);
  static constexpr int kPanels = kMajor == Major::k ? 1 : kExtent / kLine;
  static constexpr int kBytes = kExtent * kBytesOfLine;
  static constexpr int kPanelBytes = kLine * kLineBytes;

  alignas(kAtomBytes) Element data[kExtent * kLine];

  /// The address of panel i.
  __device__ Element* panel(int i) { return data + i * kLine * kLine; }

  /// The wgmma descriptor of the rows or columns from `first` (a multiple of kLine) on.
  __device__ std::uint64_t view(int first) const {
    const Element* start = data + first * kLine;
    return kMajor == Major::k ? descriptor(start, 0, 8 * kBytesOfLine, kBytesOfLine)
                              : descriptor(start, kPanelBytes, kAtomBytes);
  }
  /// The increment of a descriptor for the depth of one MMA.
  static constexpr std::uint64_t kDepthStep =
      Precision<Element>::kMmaDepth *
          (kMajor == Major::k ? Precision<Element>::kBytes : kLineBytes) >>
      4;
};

}  // namespace tessera::cuda::tile
