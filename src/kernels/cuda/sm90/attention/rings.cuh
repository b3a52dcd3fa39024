#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda/ptx>

#include "src/kernels/cuda/sm90/tile/swizzled_tile.cuh"

// Where the stages of K and V lie in shared memory.
namespace tessera::cuda::sm90::attention {

template <class Element, class Keys, class Values, int kStages>
struct Rings {
  Keys keys_[kStages];
  Values values_[kStages];

  __device__ Keys& keys(int stage) { return keys_[stage]; }
  __device__ Element* values(int stage, int panel, int row) {
    return values_[stage].panel(panel, row);
  }
  /// wgmma descriptors: of K with the columns as depth, of V with the rows.
  __device__ std::uint64_t keys_by_columns(int stage) {
    return keys_[0].by_columns(0) + stage * (Keys::kBytes >> 4);
  }
  __device__ std::uint64_t values_by_rows(int stage) {
    return values_[0].by_rows() + stage * (Values::kBytes >> 4);
  }
};

/// The same, with a panel of ones behind the panels of each stage of V: an MMA that includes eight
/// of its columns sums P per row. wgmma needs all panels at equal distances, so each stage has its
/// own ones, except that two stages of two panels share one, with one stage placed around the
/// other:
///   values 1.0 | keys 0 | values 1.1 | values 0.0 | values 0.1 | ones | keys 1
template <class Element, class Keys, class Values, int kStages>
struct CountingRings {
  static constexpr int kPanel = Values::kPanelBytes, kPanels = Values::kPanels;
  static constexpr bool kAround = kStages == 2 && kPanels == 2 && Keys::kBytes == 2 * kPanel;
  static constexpr int kOnes = kAround ? 1 : kStages, kOnesBytes = kOnes * kPanel;
  static constexpr int kKeysBytes = kStages * Keys::kBytes;

  alignas(tile::kAtomBytes) std::uint8_t bytes[kKeysBytes + kStages * Values::kBytes + kOnesBytes];

  __device__ Keys& keys(int stage) {
    return *reinterpret_cast<Keys*>(bytes +
                                    (kAround ? (1 + 6 * stage) * kPanel : stage * Keys::kBytes));
  }
  __device__ std::uint64_t keys_by_columns(int stage) { return keys(stage).by_columns(0); }
  __device__ Element* values(int stage, int panel, int row) {
    return reinterpret_cast<Element*>(bytes + first_panel(stage) + panel * apart(stage)) +
           row * Values::kLine;
  }
  __device__ std::uint64_t values_by_rows(int stage) {
    return tile::uniform(tile::descriptor(bytes + first_panel(stage), apart(stage),
                                          8 * Values::kLineBytes, Values::kLineBytes));
  }

  /// Called by all threads of a block before they synchronise.
  __device__ void put_ones(int thread, int threads) {
    constexpr std::uint32_t kTwo =
        std::is_same_v<Element, __nv_bfloat16> ? 0x3F803F80u : 0x3C003C00u;
#pragma unroll 1
    for (int stage = 0; stage < kOnes; ++stage) {
      auto* const ones = reinterpret_cast<uint4*>(values(stage, kPanels, 0));
#pragma unroll 1
      for (int i = thread; i < kPanel / 16; i += threads) ones[i] = {kTwo, kTwo, kTwo, kTwo};
    }
    ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_shared);
  }

 private:
  /// Bytes from one of a stage's panels to the next.
  __device__ static int apart(int stage) { return kAround ? (1 + 2 * stage) * kPanel : kPanel; }
  __device__ static int first_panel(int stage) {
    return kAround ? (4 - 4 * stage) * kPanel : kKeysBytes + stage * (kPanels + 1) * kPanel;
  }
};

}  // namespace tessera::cuda::sm90::attention
