#include "src/kernels/cuda/sm90/attention/turn_values.hpp"

#include "src/kernels/cuda/common/grid.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/walk/key_pieces.hpp"
#include "src/walk/turned_values.hpp"

// Transposes V for wgmma, which reads FP8 operands with the depth contiguous only. Bound by memory.
namespace tessera::cuda::sm90::attention {
namespace {

constexpr int kThreads = 256, kKeys = planning::kKeyPiece, kColumns = 64;

struct Turn {
  const std::uint8_t* from;
  std::int64_t length, batch_stride, row_stride, head_stride, column_stride;
  TurnedValues to;
  bool wide;  // rows of 16 bytes
};

/// A block of keys and columns of one head. Lanes read adjacent columns and write adjacent keys.
__global__ void __launch_bounds__(kThreads) turn_values_kernel(Turn turn) {
  __shared__ alignas(16) std::uint8_t block[kKeys][kColumns + 4];
  const TurnedValues& to = turn.to;
  const int head = blockIdx.z % to.heads, batch = blockIdx.z / to.heads;
  const std::int64_t first_key = std::int64_t{blockIdx.x} * kKeys;
  const int first_column = blockIdx.y * kColumns;
  const std::uint8_t* const from = turn.from + batch * turn.batch_stride + head * turn.head_stride;
  if (turn.wide) {
    constexpr int kWords = kColumns / 16;
    const int key = threadIdx.x / kWords, column = threadIdx.x % kWords * 16;
    static_assert(kThreads == kKeys * kWords);
    uint4 word{};
    if (first_key + key < turn.length && first_column + column < to.columns)
      word = __ldg(reinterpret_cast<const uint4*>(from + (first_key + key) * turn.row_stride +
                                                  first_column + column));
    auto* const at = reinterpret_cast<std::uint32_t*>(&block[key][column]);
    at[0] = word.x, at[1] = word.y, at[2] = word.z, at[3] = word.w;
  } else {
    for (int i = threadIdx.x; i < kKeys * kColumns; i += kThreads) {
      const int key = i / kColumns, column = i % kColumns;
      const bool exists = first_key + key < turn.length && first_column + column < to.columns;
      block[key][column] = exists ? __ldg(from + (first_key + key) * turn.row_stride +
                                          (first_column + column) * turn.column_stride)
                                  : std::uint8_t{0};
    }
  }
  __syncthreads();
  constexpr int kGroup = planning::kTurnedGroup, kGroups = kKeys / kGroup;
  static_assert(kThreads == kColumns * kGroups);
  const int column = threadIdx.x / kGroups, group = threadIdx.x % kGroups;
  if (first_column + column >= to.columns) return;
  std::uint32_t word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    word[i] = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int key = group * kGroup + planning::turned_key(i * 4 + j);
      word[i] |= std::uint32_t{block[key][column]} << j * 8;
    }
  }
  std::uint8_t* const row =
      to.data +
      ((std::int64_t{batch} * to.heads + head) * to.columns + first_column + column) * to.keys;
  *reinterpret_cast<uint4*>(row + first_key + group * kGroup) = {word[0], word[1], word[2],
                                                                 word[3]};
}

}  // namespace

TurnedValues::TurnedValues(std::uint8_t* data, const planning::AttentionShape& shape)
    : data(data),
      keys(planning::turned_keys(shape)),
      columns(shape.dim_v),
      heads(shape.kv_heads),
      batches(shape.batch) {}

tile::HeadsMap TurnedValues::map() const {
  return {data,           DType::e4m3,           keys, columns, heads, batches, keys,
          columns * keys, heads * columns * keys};
}

void turn_values(const Tensor& values, const TurnedValues& to, cudaStream_t stream) {
  if (to.keys * to.columns * to.heads * to.batches == 0) return;
  Turn turn{static_cast<const std::uint8_t*>(values.data),
            values.size(1),
            values.stride(0),
            values.stride(1),
            values.stride(2),
            values.stride(3),
            to,
            false};
  const auto whole = [](std::int64_t stride) { return stride % 16 == 0; };
  turn.wide = turn.column_stride == 1 && to.columns % 16 == 0 && whole(turn.batch_stride) &&
              whole(turn.row_stride) && whole(turn.head_stride) &&
              reinterpret_cast<std::uintptr_t>(turn.from) % 16 == 0;
  const dim3 grid(static_cast<unsigned>(to.keys / kKeys),
                  static_cast<unsigned>((to.columns + kColumns - 1) / kColumns),
                  static_cast<unsigned>(to.heads * to.batches));
  Kernel<turn_values_kernel>::launch({"turn_values_kernel", grid, kThreads, stream}, turn);
}

}  // namespace tessera::cuda::sm90::attention
