#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/sm90/bsr/walk.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// Copies stored blocks into the slots of a step: by TMA, one box per line, or by cp.async, 16 bytes
// per lane.
namespace tessera::cuda::sm90::bsr {

using tile::Major;

/// Addresses of a warp's cp.async copies of a group's piece: 16 bytes per lane, 512 per copy. Four
/// copies, one per quarter of the group's rows, are a round. A round covers 16 of a piece's depth,
/// or (Major::k) all of its depth for 16 * 16 / depth rows of each quarter.
template <class T>
struct UnitCopy {
  static constexpr bool kDeep = T::kMajorBlocks == Major::k;
  const char* from;  // this lane's source in the first copy, for a block at position 0
  std::uint32_t to;  // and its offset in a slot
  int unit = 0;      // Major::k: which of the piece's slots

  __device__ UnitCopy(const Walk& walk, int lane) {
    if constexpr (kDeep) {
      // Eight lanes copy four rows x 32 bytes, so that they write to all banks.
      const int units = kUnits >> walk.slice_shift;
      const int row = lane / 8 / units * 4 + lane % 8 / 2, chunk = lane % 2;
      unit = lane / 8 & (units - 1);
      from = walk.blocks + row * walk.row_bytes + (unit * 2 + chunk) * 16;
      to = row * 32 + ((chunk ^ row >> 2) & 1) * 16;
    } else {
      const int chunks = walk.height() / 8;  // 16-byte chunks per depth
      const int depth = lane / chunks, chunk = lane % chunks;
      from = walk.blocks + depth * walk.depth_bytes + chunk * 16;
      to = depth * tile::kLineBytes + ((chunk ^ depth) & 7) * 16;
    }
    asm("" : "+l"(from));  // one address, instead of two that are added at every use
  }
  /// The destination of copy t of the round at `round`, for this lane.
  __device__ static std::uint32_t place(const Walk& walk, std::uint32_t round, int t) {
    if constexpr (kDeep) return round + t * 512;
    if (walk.height_shift == 6) return (round + t * 512) ^ (t & 1) * 64;
    if (walk.height_shift == 5) return (round + (t & 1) * 1024) ^ (t >> 1) * 64;
    return round ^ t * 32;
  }
};

__device__ __forceinline__ void copy_16(std::uint32_t to, const char* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}

/// Copies pieces of kPieceUnits of one step, by one warp. `left`: the first units of these pieces.
template <class T, int kPieceUnits>
__device__ __forceinline__ void copy_pieces(const Walk& walk, const UnitCopy<T>& copy,
                                            std::uint32_t slots, const uint4* pieces,
                                            std::uint32_t units, std::uint32_t left, int slot) {
  constexpr std::uint32_t kSlotBytes = sizeof(typename T::Slot);
  constexpr std::uint32_t kAbsent = Window<T::kGroups>::kAbsent;
  const auto first_unit = [&] { return static_cast<unsigned>(__ffs(static_cast<int>(left)) - 1); };
  const auto piece_of = [&](unsigned unit) {
    return pieces[unit % kUnits / kPieceUnits * T::kGroups + unit / kUnits];
  };
  if (left == 0) return;
  unsigned unit = first_unit();
  uint4 piece = piece_of(unit);
#pragma unroll 1
  while (true) {
    const std::uint32_t begin[4] = {piece.x, piece.y, piece.z, piece.w};
    // No piece wraps around the end of the ring, since all have the same number of units.
    const int place = (slot + __popc(units & ((1u << unit) - 1)) + copy.unit) & (T::kSlots - 1);
    const std::uint32_t to = slots + place * kSlotBytes + copy.to;
    left &= left - 1;
    if (left != 0) {  // prefetched
      unit = first_unit();
      piece = piece_of(unit);
    }
#pragma unroll
    for (int i = 0; i < kPieceUnits; ++i) {
      // Major::k: four rows on, the two halves of the swizzle are exchanged.
      const std::uint32_t round =
          UnitCopy<T>::kDeep ? (to + i * 512 / kPieceUnits) ^ (kPieceUnits == 4 ? i % 2 * 16 : 0)
                             : to + i * kSlotBytes;
#pragma unroll
      for (int t = 0; t < 4; ++t)
        copy_16(UnitCopy<T>::place(walk, round, t),
                copy.from + std::uint64_t{begin[t] + i * walk.round_step} * 16,
                begin[t] != kAbsent);
    }
    if (left == 0) return;
  }
}

/// Bitmask of the units that are the first of a piece.
__device__ __forceinline__ std::uint32_t piece_heads(const Walk& walk) {
  return walk.slice_shift == 0 ? 0x11111111u : walk.slice_shift == 1 ? 0x55555555u : 0xFFFFFFFFu;
}

/// Loads the pieces of one step through TMA, one box per line. Called by one lane. An absent piece
/// has coordinates outside the pool, so TMA fills its place with zeros.
template <class T>
__device__ __forceinline__ void copy_boxes(const CUtensorMap& map, const Walk& walk,
                                           typename T::Slot* slots, const uint4* pieces,
                                           std::uint32_t units, int slot, std::uint64_t* full) {
  const int units_shift = 2 - walk.slice_shift, lines = kGroup >> walk.height_shift;
  const int line_bytes = walk.height() * walk.piece() * Precision<typename T::Element>::kBytes;
#pragma unroll 1
  for (std::uint32_t left = units & piece_heads(walk); left != 0; left &= left - 1) {
    const unsigned unit = __ffs(static_cast<int>(left)) - 1;
    const uint4& piece = pieces[(unit % kUnits >> units_shift) * T::kGroups + unit / kUnits];
    const auto* const blocks = reinterpret_cast<const int*>(&piece);
    const auto* const rows = reinterpret_cast<const std::uint16_t*>(&piece.z);
    auto* const to = reinterpret_cast<char*>(slots[slot].data);
    const int depth = static_cast<int>(piece.w);
#pragma unroll 1
    for (int line = 0; line < lines; ++line) {
      const int row = rows[line];
      const bool deep = T::kMajorBlocks == Major::k;
      tile::copy_box(to + line * line_bytes, map, deep ? depth : row, deep ? row : depth,
                     blocks[line], full);
    }
    slot = (slot + (1 << units_shift)) & (T::kSlots - 1);
  }
}

/// Copies the units of one step that belong to the groups in `mine`, by one warp.
template <class T>
__device__ __forceinline__ void copy_units(const Walk& walk, const UnitCopy<T>& copy,
                                           std::uint32_t slots, const uint4* pieces,
                                           std::uint32_t units, std::uint32_t mine, int slot) {
  const std::uint32_t left = units & mine;
  if (walk.slice_shift == 0) {
    copy_pieces<T, 4>(walk, copy, slots, pieces, units, left, slot);
  } else if (walk.slice_shift == 1) {
    copy_pieces<T, 2>(walk, copy, slots, pieces, units, left, slot);
  } else {
    copy_pieces<T, 1>(walk, copy, slots, pieces, units, left, slot);
  }
}

}  // namespace tessera::cuda::sm90::bsr
