#include "src/kernels/cuda/sm90/attention/turn_values.hpp"

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/walk/sequence.hpp"
#include "src/walk/turned_values.hpp"
#include "src/walk/views.hpp"

// Transposes V for wgmma, which reads FP8 operands with the depth contiguous only. Bound by memory.
namespace tessera::cuda::sm90::attention {
namespace {

constexpr int kThreads = 256, kKeys = planning::kKeyPiece, kColumns = 64;

struct Turn {
  const std::uint8_t* from;
  std::int64_t outer_stride, row_stride, head_stride, column_stride;  // outer: sequence or page
  std::int64_t length;                                                // rows of all of `outer`
  planning::SequenceList offsets;                                     // of packed sequences
  int sequences;
  planning::PageView pages;
  TurnedValues to;
  bool wide;  // rows of words of 16 bytes

  /// The row of key `key` of the transposed sequence; null if there is none.
  __device__ const std::uint8_t* row(int sequence, std::int64_t key) const {
    if (pages.table) {
      const auto run = pages.run(sequence, key, key + 1);
      return run.page < 0 ? nullptr : from + run.page * outer_stride + run.slot * row_stride;
    }
    std::int64_t at = key, end = length;
    if (offsets.values) {
      int low = 0;
      for (int high = sequences; high - low > 1;) {
        const int middle = (low + high) / 2;
        (begin(middle) <= key ? low : high) = middle;
      }
      at += offset(low) - begin(low);
      end = offset(low + 1);
    }
    return at >= 0 && at < end ? from + sequence * outer_stride + at * row_stride : nullptr;
  }

 private:
  __device__ std::int64_t offset(int sequence) const {
    return planning::clamp_to(offsets.at(sequence, 0), 0, length);
  }
  __device__ std::int64_t begin(int sequence) const {
    return planning::first_turned(offset(sequence), sequence);
  }
};

/// A block of keys and columns of one head. Lanes read adjacent columns and write adjacent keys.
__global__ void __launch_bounds__(kThreads) turn_values_kernel(Turn turn) {
  __shared__ alignas(16) std::uint8_t block[kKeys][kColumns + 4];
  wait_for_grid_before();
  let_next_grid_begin();
  const TurnedValues& to = turn.to;
  const int heads = static_cast<int>(to.heads);
  const int head = blockIdx.z % heads, sequence = blockIdx.z / heads;
  const std::int64_t first_key = std::int64_t{blockIdx.x} * kKeys;
  const int first_column = blockIdx.y * kColumns;
  constexpr int kWords = kColumns / 16;
  static_assert(kThreads == kKeys * kWords);
  const int key = threadIdx.x / kWords, word_column = threadIdx.x % kWords * 16;
  const std::uint8_t* row = turn.row(sequence, first_key + key);
  const auto left = static_cast<int>(to.columns) - first_column - word_column;
  uint4 word{};
  if (row && left > 0) {
    row += head * turn.head_stride + (first_column + word_column) * turn.column_stride;
    if (turn.wide) {
      word = __ldg(reinterpret_cast<const uint4*>(row));
    } else {
      auto* const bytes = reinterpret_cast<std::uint8_t*>(&word);
      for (int i = 0; i < 16; ++i)
        if (i < left) bytes[i] = __ldg(row + i * turn.column_stride);
    }
  }
  auto* const at = reinterpret_cast<std::uint32_t*>(&block[key][word_column]);
  at[0] = word.x, at[1] = word.y, at[2] = word.z, at[3] = word.w;
  __syncthreads();
  constexpr int kGroup = 16, kGroups = kKeys / kGroup;
  static_assert(kThreads == kColumns * kGroups);
  const int column = threadIdx.x / kGroups, group = threadIdx.x % kGroups;
  if (first_column + column >= to.columns) return;
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int of = planning::turned_key(group * kGroup + i * 4 + j);
      words[i] |= std::uint32_t{block[of][column]} << j * 8;
    }
  }
  const std::int64_t line =
      (std::int64_t{sequence} * to.heads + head) * to.columns + first_column + column;
  *reinterpret_cast<uint4*>(to.data + line * to.keys + first_key + group * kGroup) = {
      words[0], words[1], words[2], words[3]};
}

}  // namespace

TurnedValues::TurnedValues(std::uint8_t* data, const planning::AttentionShape& shape)
    : data(data),
      keys(planning::turned_keys(shape)),
      columns(shape.dim_v),
      heads(shape.kv_heads),
      sequences(shape.kv_layout == planning::KvLayout::packed ? 1 : shape.batch) {}

tile::HeadsMap TurnedValues::map() const {
  return {data,           DType::e4m3,           keys, columns, heads, sequences, keys,
          columns * keys, heads * columns * keys};
}

void turn_values(const AttentionProblem& problem, const TurnedValues& to, cudaStream_t stream) {
  if (to.keys * to.columns * to.heads * to.sequences == 0) return;
  if (problem.page_table && problem.page_table.numel() == 0) return;  // no key is read
  const Tensor& v = problem.v;
  const int row = v.rank - 3;
  Turn turn{.from = static_cast<const std::uint8_t*>(v.data),
            .outer_stride = row > 0 ? v.stride(0) : 0,
            .row_stride = v.stride(row),
            .head_stride = v.stride(row + 1),
            .column_stride = v.stride(row + 2),
            .length = v.size(row),
            .offsets = {},
            .sequences = 0,
            .pages = {},
            .to = to,
            .wide = false};
  if (problem.page_table) turn.pages = planning::page_view(problem.page_table, v);
  if (const Tensor& offsets = problem.kv_offsets) {
    turn.offsets = {planning::indices_of(offsets), offsets.stride(0)};
    turn.sequences = static_cast<int>(offsets.size(0)) - 1;
  }
  const auto whole = [](std::int64_t stride) { return stride % 16 == 0; };
  turn.wide = turn.column_stride == 1 && to.columns % 16 == 0 && whole(turn.outer_stride) &&
              whole(turn.row_stride) && whole(turn.head_stride) &&
              reinterpret_cast<std::uintptr_t>(turn.from) % 16 == 0;
  const dim3 grid(static_cast<unsigned>(to.keys / kKeys),
                  static_cast<unsigned>((to.columns + kColumns - 1) / kColumns),
                  static_cast<unsigned>(to.heads * to.sequences));
  Kernel<turn_values_kernel>::launch({.name = "turn_values_kernel",
                                      .grid = grid,
                                      .threads = kThreads,
                                      .stream = stream,
                                      .overlapped = true},
                                     turn);
}

}  // namespace tessera::cuda::sm90::attention
