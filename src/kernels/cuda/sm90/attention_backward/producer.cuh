#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm90/attention_backward/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/walk/lanes.hpp"

// The producer warp: takes key tiles, walks the blocks of queries that see them, and loads K, V, Q,
// dO and statistics.
namespace tessera::cuda::sm90::attention_backward {

__device__ __forceinline__ void copy_bytes(void* to, const void* from, std::uint32_t bytes,
                                           std::uint64_t* full) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(tile::shared_address(to)),
      "l"(from), "r"(bytes), "r"(tile::shared_address(full))
      : "memory");
}

template <class T>
class Producer {
  using KeyTiles = attention_backward::KeyTiles<T::kKeyParts, T::kBlocks>;

 public:
  using Shared = typename T::Shared;

  __device__ Producer(const Arguments& args, Shared& shared) : args_(args), shared_(shared) {}

  /// Takes tiles until none is left. All lanes call. A tile is taken when all loads of the one
  /// before have been requested: earlier, and thread blocks with longer tiles would hold tiles back
  /// that others could begin.
  __device__ void run() {
    // While statistics are computed, a tile is described for nothing, so that the code for it is in
    // the instruction cache: it would take several microseconds to load it later.
    constexpr unsigned kRehearses = ~0u;
    unsigned first_step = args_.walk.edges ? 0 : kRehearses, kv_parity = 0;
    if (first_step == 0) wait_for_inputs();
    while (true) {
      tile::wait(&shared_.tile_ring.empty[tile_at_.stage], tile_at_.parity ^ 1);
      KeyTiles tiles(args_.walk, taken());
      tiles.describe(first_step == kRehearses ? static_cast<int>(blockIdx.x)
                                              : tiles.draw(args_.scratch.ticket));
      if (first_step == kRehearses) {
        first_step = 0;
        wait_for_inputs();
        continue;
      }
      const int steps = taken().num_steps;
      if (lane() == 0) {
        taken().first_step = first_step;
        taken().end_step = first_step + static_cast<unsigned>(steps);
      }
      arrive_as_warp(shared_.tile_ring.full[tile_at_.stage], lane());
      if (steps < 0) return;
      first_step += static_cast<unsigned>(steps);
      tile::wait(&shared_.kv_ring.empty[0], kv_parity ^ 1);
      kv_parity ^= 1;
      if (tile::elect()) load_keys();
      if (args_.walk.edges)
        walk_lists(tiles);
      else if (tile::elect())
        walk_range(tiles);
      __syncwarp();
      tile_at_.advance();
    }
  }

 private:
  /// Waits until statistics have been written, turn counters and the ticket cleared. The kernel of
  /// dQ needs nothing else, and may begin: it does not wait itself, so it must not begin before.
  __device__ static void wait_for_inputs() {
    wait_for_grid_before();
    let_next_grid_begin();
  }

  __device__ static int lane() { return KeyTiles::lane(); }
  __device__ TileDescriptor& taken() const { return shared_.tiles[tile_at_.stage]; }

  __device__ void load_keys() {
    const KeyTileJob& job = taken().job;
    const int row = (job.tile * T::kKeyParts + taken().key_part) * T::kN +
                    (args_.walk.keys.packed ? job.kv_begin : 0);
    const int batch = args_.walk.keys.packed ? 0 : job.batch;
    if (taken().num_steps == 0) return tile::arrive(&shared_.kv_ring.full[0]);
    const std::uint32_t full = tile::shared_address(&shared_.kv_ring.full[0]);
    tile::arrive_expecting(&shared_.kv_ring.full[0], T::Keys::kBytes + T::Values::kBytes);
#pragma unroll
    for (int p = 0; p < T::Keys::kPanels; ++p)
      tile::copy_box(tile::shared_address(shared_.keys.panel(p)), args_.k, p * T::Keys::kLine, row,
                     job.kv_head, batch, full);
#pragma unroll
    for (int p = 0; p < T::Values::kPanels; ++p)
      tile::copy_box(tile::shared_address(shared_.values.panel(p)), args_.v, p * T::Values::kLine,
                     row, job.kv_head, batch, full);
  }

  /// Without a block mask: one lane walks a range of blocks for each head.
  __device__ void walk_range(const KeyTiles& tiles) {
    const int count = tiles.end_step() - tiles.first_step();
    for (int head = tiles.first_head(); head < tiles.end_head(); ++head)
      for (int i = 0; i < count; ++i) {
        const int first = taken().job.step_at(i, T::kBlocks) * T::kBlocks;
        load(head, first, [&](int of_step) {
          const KeyTileJob& job = taken().job;
          const int block = first + of_step;
          return describe(tiles, head, block, block >= job.first_block && block < job.end_block);
        });
      }
  }

  /// With a block mask: lanes look up 32 words of bits, then one step each.
  __device__ void walk_lists(const KeyTiles& tiles) {
    for (int head = tiles.first_head(); head < tiles.end_head(); ++head) {
      for (int end = tiles.end_word(); end > tiles.first_word(); end -= kLanes) {
        const int mine = end - 1 - lane();  // lane 0 has the last word
        const std::uint32_t bits = mine >= tiles.first_word() ? tiles.steps_of(head, mine) : 0;
        for (unsigned found = __ballot_sync(kAllLanes, bits != 0); found != 0; found &= found - 1) {
          const int holder = planning::first_lane(found);
          walk_word(tiles, head, end - 1 - holder, __shfl_sync(kAllLanes, bits, holder));
        }
      }
    }
  }

  /// The steps of a word's bits, from the highest on.
  __device__ void walk_word(const KeyTiles& tiles, int head, int word, std::uint32_t bits) {
    const int count = __popc(bits);
    // The bit that has `lane()` set bits above it.
    std::uint32_t rest = bits;
    for (int i = 0; i < lane() && i < count; ++i) rest &= ~(0x80000000u >> __clz(rest));
    const int bit = 31 - __clz(rest), first = word * 32 + bit;
    BackwardStep step{};
    std::uint32_t listed = 0;
    if (lane() < count) {
      if constexpr (T::kBlocks == 1)
        step = describe(tiles, head, first, true);
      else
        listed = tiles.bits_of(head, word) >> bit;
    }
    for (int i = 0; i < count; ++i) {
      if (lane() == i)
        load(head, first, [&](int block) {
          if constexpr (T::kBlocks == 1) return step;
          return describe(tiles, head, first + block, (listed >> block & 1) != 0);
        });
      __syncwarp();
      // Positions in the rings are equal in all lanes.
      if (lane() != i) advance();
    }
  }

  __device__ BackwardStep describe(const KeyTiles& tiles, int head, int block, bool visits) const {
    const KeyTileJob& job = taken().job;
    if (T::kBlocks > 1 && !visits) return absent_step(args_.walk, job, head, block);
    return describe_step(args_.walk, job, tiles.keeps_all_keys(), head, block);
  }

  __device__ void advance() {
    q_at_.advance();
    g_at_.advance();
    step_at_.advance();
  }

  /// `described(i)`: block `first + i`.
  template <class Described>
  __device__ void load(int head, int first, const Described& described) {
    if constexpr (T::kSendsDq)
      tile::wait(&shared_.step_ring.empty[step_at_.stage], step_at_.parity ^ 1);
#pragma unroll 1
    for (int i = 0; i < T::kBlocks; ++i) shared_.steps[step_at_.stage][i] = described(i);
    tile::arrive(&shared_.step_ring.full[step_at_.stage]);

    const KeyTileJob& job = taken().job;
    const int block = head * args_.walk.query_blocks + job.query_slot + first;
    const bool packed = args_.walk.queries.packed;
    const int row = first * T::kBlock + (packed ? job.q_begin : 0), batch = packed ? 0 : job.batch;
    constexpr int kStatisticBytes = T::kM * sizeof(float);
    const std::int64_t statistics = std::int64_t{block} * T::kBlock;
    const auto load_rows = [&]<class Rows>(Rows& to, const CUtensorMap& map, float* numbers,
                                           const float* from, std::uint64_t* full) {
      tile::arrive_expecting(full, Rows::kBytes + kStatisticBytes);
#pragma unroll
      for (int p = 0; p < Rows::kPanels; ++p)
        tile::copy_box(tile::shared_address(to.panel(p)), map, p * Rows::kLine, row, head, batch,
                       tile::shared_address(full));
      copy_bytes(numbers, from + statistics, kStatisticBytes, full);
    };
    const int q = q_at_.stage, g = g_at_.stage;
    tile::wait(&shared_.q_ring.empty[q], q_at_.parity ^ 1);
    load_rows(shared_.queries[q], args_.q, shared_.lse[q], args_.scratch.lse,
              &shared_.q_ring.full[q]);
    tile::wait(&shared_.g_ring.empty[g], g_at_.parity ^ 1);
    load_rows(shared_.gradients[g], args_.dout, shared_.delta[g], args_.scratch.delta,
              &shared_.g_ring.full[g]);
    advance();
  }

  const Arguments& args_;
  Shared& shared_;
  tile::RingCursor<T::kTiles> tile_at_;
  // Of the lanes that load.
  tile::RingCursor<T::kStages> q_at_;
  tile::RingCursor<T::kStages> g_at_;
  tile::RingCursor<T::kStepDescriptors> step_at_;
};

}  // namespace tessera::cuda::sm90::attention_backward
