#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm80/attention/copy.cuh"
#include "src/kernels/cuda/sm80/attention_backward/shape.cuh"

// The walk of a key tile: which blocks of queries visit it, and copies of what they need.
namespace tessera::cuda::sm80::attention_backward {

/// The first warp describes steps ahead of all warps, several at a time, a lane each, as it looks
/// up lists for each.
template <class T>
class Steps : public KeyTiles<T::kKeyParts> {
  using Base = KeyTiles<T::kKeyParts>;
  using Base::lane, Base::first_head, Base::first_word, Base::end_word, Base::bits_of,
      Base::keeps_all_keys;

 public:
  using Shared = typename T::Shared;
  // In step j the descriptors of steps j - 1 to j + kAhead are in use.
  static constexpr int kAhead = 2, kAtOnce = 16;
  static_assert(kAtOnce + kAhead + 2 <= planning::kBackwardSteps && kAtOnce <= kLanes);

  __device__ __forceinline__ Steps(const Arguments& args, Shared& shared)
      : Base(args.walk, shared.taken), walk_(args.walk), shared_(shared) {}

  /// All lanes of the first warp call.
  __device__ void start() {
    if (lane() == 0) {
      shared_.described = 0;
      shared_.head = first_head();
      shared_.block = shared_.taken.job.end_block;
      if (walk_.edges) shared_.word = end_word(), shared_.bits = 0;
    }
    __syncwarp();
    fill(0);
  }

  /// The first warp calls this in step `step`, after the barrier at which all warps have left the
  /// step before. Describes steps up to `step` + kAhead and more.
  __device__ void fill(int step) {
    const int described = shared_.described;
    if (described > step + kAhead || described == shared_.taken.num_steps) return;
    const int count = min(shared_.taken.num_steps - described, kAtOnce);
    int head = shared_.head, block = shared_.block, word = shared_.word;
    std::uint32_t bits = shared_.bits;
    int my_head = 0, my_block = 0;
    for (int i = 0; i < count; ++i) {
      if (walk_.edges) {
        find_word(head, word, bits);
        block = word * 32 + 31 - __clz(static_cast<int>(bits));
        bits &= ~(1u << block % 32);
      } else if (--block < shared_.taken.job.first_block) {
        ++head;
        block = shared_.taken.job.end_block - 1;
      }
      if (i == lane()) my_head = head, my_block = block;
    }
    const KeyTileJob& job = shared_.taken.job;
    if (job.ascends) my_block = job.step_at(job.end_block - 1 - my_block, 1);
    if (lane() < count)
      shared_.steps[(described + lane()) % planning::kBackwardSteps] =
          describe_step(walk_, shared_.taken.job, keeps_all_keys(), my_head, my_block);
    __syncwarp();
    if (lane() == 0) {
      shared_.described = described + count;
      shared_.head = head, shared_.block = block, shared_.word = word, shared_.bits = bits;
    }
    __syncwarp();
  }

 private:
  /// Goes on to the next word with blocks that visit the tile, if the word at hand has none left.
  /// There is one, as the steps have been counted.
  __device__ void find_word(int& head, int& word, std::uint32_t& bits) const {
    while (bits == 0) {
      const int mine = word - 1 - lane();  // lane 0 has the last word
      const std::uint32_t found = mine >= first_word() ? bits_of(head, mine) : 0;
      const unsigned holders = __ballot_sync(kAllLanes, found != 0);
      if (holders != 0) {
        const int holder = planning::first_lane(holders);
        word -= 1 + holder;
        bits = __shfl_sync(kAllLanes, found, holder);
      } else if (word - kLanes > first_word()) {
        word -= kLanes;
      } else {
        ++head;
        word = end_word();
      }
    }
  }

  const planning::BackwardWalk& walk_;
  Shared& shared_;
};

/// Starts this thread's copies of rows of one head of `source`: `kCount` from row `row` on. Those
/// that are not in `kept` become zeros.
template <class T, class Rows, int kCount>
__device__ __forceinline__ void copy_head_rows(std::uint32_t to, const Source& source, int batch,
                                               int head, std::int64_t row, std::uint64_t kept) {
  using Element = typename T::Element;
  using Share = attention::CopyShare<Rows, T::kThreads>;
  const Share mine = Share::of(thread_of_block());
  const auto* const data = static_cast<const Element*>(source.data);
  const Element* const from = data + batch * source.batch + head * source.head +
                              (row + mine.row) * source.row + mine.chunk * Rows::kChunkColumns;
  const bool whole = kCount == 64 && kept == planning::kAllKeys &&
                     source.dim == Rows::kChunks * Rows::kChunkColumns;
  if (whole)
    attention::copy_whole_rows<Rows, kCount, 2>(to, source, mine, from);
  else
    attention::copy_rows<Rows, kCount, 2>(to, source, mine, from, kept);
}

/// Starts this thread's copies of the keys, or values, of the thread block. Keys that no query sees
/// become zeros: P = 0 would not hide a NaN in them.
template <class T, class Rows>
__device__ __forceinline__ void copy_keys(std::uint32_t to, const Source& source,
                                          const typename T::Shared& shared) {
  const KeyTileJob& job = shared.taken.job;
  constexpr int kCount = T::kN < 64 ? T::kN : 64;
#pragma unroll
  for (int first = 0; first < T::kN; first += kCount) {
    const int key = shared.taken.key_part * T::kN + first;  // in the tile
    copy_head_rows<T, Rows, kCount>(
        to + first * Rows::kLineBytes, source, job.batch, job.kv_head,
        std::int64_t{job.kv_begin} + job.tile * planning::kKeysPerTile + key,
        shared.taken.kept[key / 64] >> key % 64);
  }
}

/// Starts this thread's copies of what step `step` needs: Q, dO and their statistics. Queries that
/// see no key become zeros.
template <class T>
__device__ __forceinline__ void copy_step(const Arguments& args, typename T::Shared& shared,
                                          int step) {
  const BackwardStep& descriptor = shared.steps[step % planning::kBackwardSteps];
  const KeyTileJob& job = shared.taken.job;
  const int stage = step % T::kStages, first = descriptor.block * T::kM;
  const std::uint64_t seeing = descriptor.seeing;
  const std::uint64_t kept = seeing & planning::bits_between(0, job.q_length - first);
  const std::int64_t row = std::int64_t{job.q_begin} + first;
  copy_head_rows<T, typename T::Queries, T::kM>(
      attention::shared_address(shared.stages[stage].queries), args.q, job.batch, descriptor.head,
      row, kept);
  copy_head_rows<T, typename T::Gradients, T::kM>(
      attention::shared_address(shared.stages[stage].gradients), args.dout, job.batch,
      descriptor.head, row, kept);
  const int thread = thread_of_block(), query = thread % T::kM;
  if (thread >= 2 * T::kM) return;
  const std::int64_t from =
      (std::int64_t{descriptor.head} * args.walk.query_blocks + job.query_slot + descriptor.block) *
          T::kM +
      planning::mixed_query(query);
  if (thread < T::kM)
    copy_word(attention::shared_address(&shared.lse[stage][query]), args.scratch.lse + from, true);
  else
    copy_word(attention::shared_address(&shared.delta[stage][query]), args.scratch.delta + from,
              (seeing >> query & 1) != 0);
}

}  // namespace tessera::cuda::sm80::attention_backward
