#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/attention/arrivals.cuh"
#include "src/kernels/cuda/sm90/attention/boxes.cuh"
#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"
#include "src/kernels/cuda/sm90/tile/grid.cuh"

// Two warps fill the rings: the loader follows the scout's notes step by step; the clearer puts
// zeros over values that nobody may see.
namespace tessera::cuda::sm90::attention {

/// One lane, elected: the compiler has to know that it is one.
template <class T>
class Loader {
 public:
  __device__ Loader(const Arguments& args, typename T::Shared& shared)
      : args_(args), shared_(shared) {}

  __device__ void run() {
    wait_for_grids_before();
    while (true) {
      const unsigned place = tile_ % T::kTileNotes;
      tile::wait(&shared_.tile_ring.full[place], tile_ / T::kTileNotes % 2);
      const TileNote& note = shared_.tiles[place];
      if (!T::kStoresItself && asked_ == tile_) ask_for_queries(note);
      ++tile_;
      if (!note.ends_all) walk(note);
      if (T::kStoresItself && asked_ < tile_) ask_for_queries(note);
      if (note.ends_all) break;
      tile::arrive(&shared_.tile_ring.empty[(tile_ - 1) % T::kTileNotes]);
    }
    finish();
  }

 private:
  using Step = typename T::Step;

  /// Nothing was read or written before, but for what the scout had to know.
  __device__ void wait_for_grids_before() {
    if (args_.walk.order) {
      tile::wait(&shared_.tile_ring.full[0], 0);  // the scout has seen that they are done
      ::cuda::ptx::fence_proxy_async(::cuda::ptx::space_global);
    } else {
      tile::wait_for_grid_before();
    }
  }

  __device__ void ask_for_queries(const TileNote& note) {
    const unsigned q = asked_ % T::kQueryStages;
    tile::wait(&shared_.q_ring.empty[q], asked_ / T::kQueryStages % 2 ^ 1);
    load_queries(note);
  }

  __device__ void load_queries(const TileNote& note) {
    const unsigned q = asked_++ % T::kQueryStages;
    std::uint64_t* full = &shared_.q_ring.full[q];
    if (note.ends_all) {
      tile::arrive(full);
    } else {
      constexpr int kPanels = T::kDim / T::Queries::kLine;
      tile::arrive_expecting(full, kPanels * T::Queries::kPanelBytes);
      const int head_group = note.head >> args_.walk.pack_shift;
#pragma unroll
      for (int p = 0; p < kPanels; ++p)
        copy_once(tile::shared_address(shared_.q[q].panel(p)), args_.q, p * T::Queries::kLine, 0,
                  note.q_begin + note.first_query, head_group, args_.walk.packed_q ? 0 : note.batch,
                  tile::shared_address(full));
    }
  }

  /// The next tile's queries, as soon as it is known and there is room, without waiting.
  __device__ void look_ahead() {
    using tile::ptx::mbarrier_test_wait_parity;
    if (asked_ > tile_) return;
    const unsigned place = tile_ % T::kTileNotes, q = asked_ % T::kQueryStages;
    if (mbarrier_test_wait_parity(&shared_.tile_ring.full[place], tile_ / T::kTileNotes % 2) &&
        mbarrier_test_wait_parity(&shared_.q_ring.empty[q], asked_ / T::kQueryStages % 2 ^ 1))
      load_queries(shared_.tiles[place]);
  }

  /// Keys and values in turns, one step after the other. Consumers rely on that where they read a
  /// step's keys again after giving them back: until the values of the step before are given back
  /// too, no later keys take their stage.
  __device__ void walk(const TileNote& note) {
    const int batch = args_.walk.sequences.kv_offsets.values ? 0 : note.batch;
    // Where queries wait for those before them to be read, the first keys come sooner.
    int free = T::kStages - 1;
    for (bool last = false; !last;) {
      const unsigned place = step_ % T::kStepNotes;
      tile::wait(&shared_.step_ring.full[place], step_ / T::kStepNotes % 2);
      const Step& step = shared_.steps[place];
      last = step.lines[0].ends && step_ % T::kTeams == T::kTeams - 1;

      tile::wait(&shared_.k_ring.empty[at_.stage], at_.parity ^ 1);
      shared_.notes[at_.stage] = step;
      tile::arrive_expecting(&shared_.k_ring.full[at_.stage], T::Keys::kBytes);
      const auto keys = [&](int panel, int row) {
        return shared_.rings.keys(at_.stage).panel(panel, row);
      };
      copy<typename T::Keys>(keys, args_.k, step, note, batch, &shared_.k_ring.full[at_.stage]);
      if (T::kStoresItself && free-- == 0) ask_for_queries(note);

      tile::wait(&shared_.v_ring.empty[at_.stage], at_.parity ^ 1);
      std::uint64_t* full = &shared_.v_ring.full[at_.stage];
      if (is_ragged(shared_.kept[place])) {
        order_clearing(shared_.kept[place]);
        full = &shared_.landed[at_.stage];
      }
      tile::arrive_expecting(full, T::Values::kBytes);
      const auto values = [&](int panel, int row) {
        return shared_.rings.values(at_.stage, panel, row);
      };
      copy<typename T::Values>(values, args_.v, step, note, batch, full);
      tile::arrive(&shared_.step_ring.empty[place]);
      ++step_;
      at_.advance();
      if constexpr (!T::kStoresItself) look_ahead();
    }
  }

  template <class Rows>
  __device__ void copy(const auto& place, const CUtensorMap& from, const Step& step,
                       const TileNote& note, int batch, std::uint64_t* full) {
#pragma unroll
    for (int piece = 0; piece < T::kPieces; ++piece)
#pragma unroll
      for (int p = 0; p < Rows::kPanels; ++p)
        copy_kept(tile::shared_address(place(p, piece * planning::kKeyPiece)), from,
                  p * Rows::kLine, note.kv_begin + step.key[piece], note.kv_head, batch,
                  tile::shared_address(full));
  }

  /// Whether keys come along that nobody sees.
  __device__ static bool is_ragged(const std::uint64_t (&kept)[T::kPieces]) {
    std::uint64_t all = kAllKeys;
#pragma unroll
    for (const std::uint64_t keys : kept) all &= keys;
    return all != kAllKeys;
  }

  __device__ void order_clearing(const std::uint64_t (&kept)[T::kPieces]) {
    auto& clearing = next_clearing();
    clearing.stage = at_.stage;
#pragma unroll
    for (int p = 0; p < T::kPieces; ++p) clearing.kept[p] = kept[p];
    tile::arrive(&shared_.clearing_ring.full[clearing_++ % T::kClearings]);
  }

  __device__ typename T::Clearing& next_clearing() {
    const unsigned place = clearing_ % T::kClearings;
    tile::wait(&shared_.clearing_ring.empty[place], clearing_ / T::kClearings % 2 ^ 1);
    return shared_.clearings[place];
  }

  __device__ void finish() {
    next_clearing().stage = -1;
    tile::arrive(&shared_.clearing_ring.full[clearing_ % T::kClearings]);
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  tile::RingCursor<T::kStages> at_;
  // How many came before. `asked_`: tiles whose queries are under way.
  unsigned tile_ = 0, asked_ = 0, step_ = 0, clearing_ = 0;
};

/// Values of keys that no query of the tile sees may be NaN, and zero times NaN is NaN: they become
/// zeros before the consumers see them.
template <class T>
__device__ __forceinline__ void clear_ragged_values(typename T::Shared& shared, int lane) {
  tile::RingCursor<T::kClearings> at;
  std::uint32_t parities = 0;  // of `landed`, a bit a stage
  while (true) {
    tile::wait(&shared.clearing_ring.full[at.stage], at.parity);
    const typename T::Clearing& clearing = shared.clearings[at.stage];
    const int stage = clearing.stage;
    if (stage < 0) return;
    tile::wait(&shared.landed[stage], parities >> stage & 1);
    parities ^= 1u << stage;
    constexpr int kLanes = T::Values::kLineBytes / 16;  // a line
#pragma unroll 1
    for (int piece = 0; piece < T::kPieces; ++piece) {
      const std::uint64_t kept = clearing.kept[piece];
#pragma unroll 1
      for (int row = lane / kLanes; row < planning::kKeyPiece; row += 32 / kLanes) {
        if ((kept >> row & 1) != 0) continue;
#pragma unroll
        for (int p = 0; p < T::Values::kPanels; ++p)
          reinterpret_cast<uint4*>(shared.rings.values(
              stage, p, piece * planning::kKeyPiece + row))[lane % kLanes] = uint4{};
      }
    }
    tile::ptx::fence_proxy_async(tile::ptx::space_shared);
    arrive_as_warp(shared.clearing_ring.empty[at.stage], lane);
    if (lane == 0) tile::arrive(&shared.v_ring.full[stage]);
    at.advance();
  }
}

}  // namespace tessera::cuda::sm90::attention
