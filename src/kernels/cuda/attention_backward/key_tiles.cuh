#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/walk/backward_walk.hpp"
#include "src/walk/lanes.hpp"

namespace tessera::cuda::attention_backward {

inline constexpr int kHalves = 2;  // of the keys of a tile: 64 each

/// A share of a key tile that a thread block has taken, or a part of one.
struct TakenTile {
  planning::KeyTileJob job;
  std::uint64_t kept[kHalves];  // keys that some query of the share's heads sees
  std::int32_t num_steps;       // of its walk; -1: there was no tile left
  std::int32_t key_part;        // which part of the tile
};

/// How a warp takes a key tile, or one of `kKeyParts` parts of it, and finds the blocks of queries
/// that visit it. A step has `kBlocks` adjacent blocks, 1 or 2.
template <int kKeyParts, int kBlocks = 1>
class KeyTiles {
 public:
  __device__ KeyTiles(const planning::BackwardWalk& walk, TakenTile& taken)
      : walk_(walk), taken_(taken) {}

  /// Takes the next key tile. All lanes call; the other warps read the result after a barrier.
  __device__ void take(std::int32_t* ticket) { describe(draw(ticket)); }

  /// The number of the next key tile, or part of one.
  __device__ static int draw(std::int32_t* ticket) {
    int number = 0;
    if (lane() == 0) number = atomicAdd(ticket, 1);
    return __shfl_sync(kAllLanes, number, 0);
  }
  /// Describes a key tile, or part of one, and counts the steps of its walk.
  __device__ void describe(int number) {
    const int tile = number / kKeyParts;
    const planning::KeyTilePlace place =
        tile < walk_.tiles ? place_of(tile) : planning::KeyTilePlace{};
    if (lane() == 0) {
      taken_.key_part = number % kKeyParts;
      taken_.num_steps = place.batch < 0 ? -1 : 0;
      if (place.batch >= 0) taken_.job = describe_key_tile(walk_, place);
    }
    __syncwarp();
    if (place.batch < 0) return;
    const planning::KeyTileJob& job = taken_.job;
    int steps = 0;
    std::uint64_t kept = lane() < kHalves ? job.kept[lane()] : 0;
    if (walk_.edges) {
      std::uint64_t listed = 0;
      for (int head = first_head(); head < end_head(); ++head) {
        if (lane() < kHalves)
          listed |= walk_.edges.kept(job.batch, head, job.tile * kHalves + lane());
        for (int word = first_word() + lane(); word < end_word(); word += kLanes)
          steps += __popc(steps_of(head, word));
      }
      kept &= listed;
      steps = __reduce_add_sync(kAllLanes, steps);
    } else {
      steps = (end_step() - first_step()) * walk_.group;
    }
    if (lane() < kHalves) taken_.kept[lane()] = kept;
    if (lane() == 0) taken_.num_steps = steps;
    __syncwarp();
  }

  __device__ static int lane() { return thread_of_block() % kLanes; }
  __device__ int first_head() const { return taken_.job.first_head; }
  __device__ int end_head() const { return first_head() + walk_.group; }

  // Words of the bitmap of lists: 32 blocks of queries each.
  __device__ int first_word() const { return taken_.job.first_block / 32; }
  __device__ int end_word() const {
    const int words = static_cast<int>(walk_.edges.sizes.row_words);
    return min((taken_.job.end_block + 31) / 32, words);
  }
  // Without a block mask: the steps of a head.
  __device__ int first_step() const { return taken_.job.first_block / kBlocks; }
  __device__ int end_step() const {
    const planning::KeyTileJob& job = taken_.job;
    return job.end_block > job.first_block ? (job.end_block + kBlocks - 1) / kBlocks : first_step();
  }
  /// The first blocks of the steps of word `word`.
  __device__ std::uint32_t steps_of(int head, int word) const {
    const std::uint32_t bits = bits_of(head, word);
    return kBlocks == 1 ? bits : (bits | bits >> 1) & 0x55555555u;
  }
  /// The blocks of queries of word `word` that visit the tile.
  __device__ std::uint32_t bits_of(int head, int word) const {
    const planning::KeyTileJob& job = taken_.job;
    if (job.tile >= walk_.edges.sizes.tiles) return 0;
    const std::uint32_t bits = walk_.edges.rows_of(job.batch, head, job.tile)[word];
    return bits & static_cast<std::uint32_t>(planning::bits_between(job.first_block - word * 32,
                                                                    job.end_block - word * 32));
  }

  __device__ bool keeps_all_keys() const {
    return (taken_.kept[0] & taken_.kept[1]) == ~std::uint64_t{0};
  }

 private:
  __device__ planning::KeyTilePlace place_of(int number) const {
    if (!walk_.keys.packed) return walk_.place_of(number);
    // Sequence by sequence: tile 0 of all shares, then tile 1.
    for (int first = 0; first < walk_.batches; first += kLanes) {
      const int mine = first + lane();
      int count = 0;
      if (mine < walk_.batches)
        count =
            walk_.keys.count(static_cast<int>(walk_.sequences.at(mine).kv_length)) * walk_.shares;
      const int up_to = sum_through(lane(), count);
      const unsigned beyond = __ballot_sync(kAllLanes, up_to > number);
      if (beyond != 0) {
        const int holder = planning::first_lane(beyond);
        number -= __shfl_sync(kAllLanes, up_to - count, holder);
        return {first + holder, walk_.by_shares.rest(number), walk_.by_shares.quotient(number)};
      }
      number -= __shfl_sync(kAllLanes, up_to, kLanes - 1);
    }
    return {};
  }

  const planning::BackwardWalk& walk_;
  TakenTile& taken_;
};

}  // namespace tessera::cuda::attention_backward
