#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include <tessera/error.hpp>

#include "src/kernels/cuda/backend.hpp"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/common/scan.cuh"
#include "src/kernels/cuda/prepare/convert.hpp"
#include "src/kernels/cuda/spgemm/pattern.hpp"
#include "src/walk/transposed_lists.hpp"
#include "src/walk/views.hpp"

// spgemm_symbolic: the pattern of a product of two block-sparse matrices. A CTA marks the columns
// of one row of the result in a bitmap, once to count them, and again, when the offsets are known,
// to write them in order.
namespace tessera::cuda {
namespace {

using planning::BsrRow;
using planning::BsrView;

constexpr int kThreads = 256, kWarps = kThreads / kLanes;
constexpr int kWordsAThread = 8;
constexpr int kWords = kThreads * kWordsAThread;
constexpr std::int64_t kWindow = std::int64_t{kWords} * 32;  // columns that one bitmap holds

struct Symbolic {
  BsrView a, b;  // rows of op(A), rows of op(B)
  std::int64_t rows = 0, cols = 0;
  std::int32_t* offsets = nullptr;  // [rows + 1]
  std::int32_t* columns = nullptr;
  unsigned long long* totals = nullptr;  // stored blocks, pairs of blocks
};

/// Marks the blocks of row `i` of the result in the window of columns from `first` on. Returns the
/// number of pairs that this thread saw.
__device__ unsigned long long mark(const Symbolic& s, std::int64_t i, std::int64_t first,
                                   std::uint32_t* words) {
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  for (int w = threadIdx.x; w < kWords; w += kThreads) words[w] = 0;
  __syncthreads();
  unsigned long long pairs = 0;
  const BsrRow left = s.a.row(0, i);
  for (std::int64_t e = left.begin + warp; e < left.end; e += kWarps) {
    const BsrRow right = s.b.row(0, left.column(e));  // empty if the index is out of range
    for (std::int64_t f = right.begin + lane; f < right.end; f += kLanes) {
      const std::int64_t column = right.column(f) - first;
      if (column < 0 || column >= kWindow) continue;
      atomicOr(&words[column / 32], 1u << (column % 32));
      ++pairs;
    }
  }
  __syncthreads();
  return pairs;
}

/// Number of marks in this thread's words.
__device__ int count(const std::uint32_t* words) {
  int marks = 0;
#pragma unroll
  for (int w = 0; w < kWordsAThread; ++w) marks += __popc(words[threadIdx.x * kWordsAThread + w]);
  return marks;
}

/// Counts each row's blocks, and writes the length where the row's end offset will be.
__global__ void __launch_bounds__(kThreads) count_kernel(Symbolic s) {
  __shared__ std::uint32_t words[kWords];
  for (std::int64_t i = blockIdx.x; i < s.rows; i += gridDim.x) {
    std::int64_t length = 0;
    unsigned long long pairs = 0;
    for (std::int64_t first = 0; first < s.cols; first += kWindow) {
      pairs += mark(s, i, first, words);
      length += exclusive_sum<kThreads>(count(words)).total;
    }
    if (pairs > 0) atomicAdd(&s.totals[1], pairs);
    if (threadIdx.x == 0) s.offsets[i + 1] = static_cast<std::int32_t>(length);
  }
}

constexpr int kScanThreads = 1024;

/// Turns lengths into offsets, in one CTA; each thread takes a range of rows. The host refuses
/// totals beyond 32 bits.
__global__ void __launch_bounds__(kScanThreads) offsets_kernel(Symbolic s) {
  const std::int64_t each = (s.rows + kScanThreads - 1) / kScanThreads;
  const std::int64_t begin = planning::clamp_to(threadIdx.x * each, 0, s.rows);
  const std::int64_t end = planning::clamp_to(begin + each, 0, s.rows);
  std::int64_t sum = 0;
  for (std::int64_t i = begin; i < end; ++i) sum += s.offsets[i + 1];
  const ExclusiveSum sums = exclusive_sum<kScanThreads>(sum);
  std::int64_t at = sums.before;
  for (std::int64_t i = begin; i < end; ++i) {
    at += s.offsets[i + 1];
    s.offsets[i + 1] = static_cast<std::int32_t>(at);
  }
  if (threadIdx.x == 0) {
    s.offsets[0] = 0;
    s.totals[0] = static_cast<unsigned long long>(sums.total);
  }
}

/// Marks each row again and writes its columns, in order.
__global__ void __launch_bounds__(kThreads) columns_kernel(Symbolic s) {
  __shared__ std::uint32_t words[kWords];
  for (std::int64_t i = blockIdx.x; i < s.rows; i += gridDim.x) {
    std::int64_t base = s.offsets[i];
    const std::int64_t end = s.offsets[i + 1];
    for (std::int64_t first = 0; first < s.cols; first += kWindow) {
      mark(s, i, first, words);
      const ExclusiveSum marks = exclusive_sum<kThreads>(count(words));
      std::int64_t at = base + marks.before;
#pragma unroll 1
      for (int w = 0; w < kWordsAThread; ++w) {
        const int index = threadIdx.x * kWordsAThread + w;
        // If a list has changed since it was counted, nothing is written past the row's end.
        for (std::uint32_t word = words[index]; word != 0 && at < end; word &= word - 1)
          s.columns[at++] = static_cast<std::int32_t>(first + index * 32 + __ffs(word) - 1);
      }
      base += marks.total;
      __syncthreads();
    }
  }
}

/// Pool memory for the duration of a call.
struct Scratch {
  void* data;
  int device;
  void* stream;
  Scratch(std::int64_t bytes, int on, void* in)
      : data(allocate(bytes, on, in)), device(on), stream(in) {}
  ~Scratch() { release(data, device, stream); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

struct Pieces {
  planning::GpuLists a, b;
  std::int32_t* offsets;
  unsigned long long* totals;
};

Pieces carve(core::Carver& carver, const planning::SpgemmShape& shape, std::int64_t rows) {
  Pieces pieces{};
  pieces.totals = carver.add<unsigned long long>(2);
  pieces.offsets = carver.add<std::int32_t>(core::Size(rows) + 1);
  if (shape.a.transposed) pieces.a = planning::carve_gpu_lists(carver, shape.a);
  if (shape.b.transposed) pieces.b = planning::carve_gpu_lists(carver, shape.b);
  return pieces;
}

BsrView lists_of(const Operand& operand, const planning::GpuLists& lists, const Place& place) {
  if (lists) transpose_lists(planning::view_of(operand.sparse), 1, lists, place);
  return planning::walk_of(operand.sparse, lists);
}

/// Memory for the lists, freed with the last copy of the pattern (cudaFree waits for work that
/// still uses it).
std::shared_ptr<void> lasting(std::int64_t bytes, int device) {
  void* data = nullptr;
  check(cudaMalloc(&data, static_cast<std::size_t>(bytes)), "cudaMalloc(spgemm)");
  return {data, [device](void* p) {
            int before = 0;
            cudaGetDevice(&before);
            cudaSetDevice(device);
            cudaFree(p);
            cudaSetDevice(before);
          }};
}

}  // namespace

SpgemmPattern spgemm_symbolic(const SpgemmProblem& problem, const planning::SpgemmShape& shape,
                              void* stream) {
  const DeviceGuard guard(shape.device.index);
  const auto on = static_cast<cudaStream_t>(stream);
  SpgemmPattern pattern;
  pattern.rows = shape.m / (shape.a.transposed ? shape.a.block.cols : shape.a.block.rows);
  pattern.cols = shape.n / (shape.b.transposed ? shape.b.block.rows : shape.b.block.cols);

  core::Carver sizing;
  carve(sizing, shape, pattern.rows);
  const Scratch scratch(sizing.used(), shape.device.index, stream);
  core::Carver carver(scratch.data);
  const Pieces pieces = carve(carver, shape, pattern.rows);
  Symbolic s;
  s.rows = pattern.rows;
  s.cols = pattern.cols;
  s.offsets = pieces.offsets;
  s.totals = pieces.totals;
  s.a = lists_of(problem.a, pieces.a, {shape.device.index, stream});
  s.b = lists_of(problem.b, pieces.b, {shape.device.index, stream});

  check(cudaMemsetAsync(s.totals, 0, 2 * sizeof(*s.totals), on), "cudaMemsetAsync(spgemm)");
  constexpr std::int64_t kMaxBlocks = 1 << 20;
  const dim3 grid = grid_of(std::min(s.rows, kMaxBlocks));
  Kernel<count_kernel>::launch({"count_kernel", grid, kThreads, stream}, s);
  Kernel<offsets_kernel>::launch({"offsets_kernel", 1, kScanThreads, stream}, s);
  unsigned long long totals[2] = {};
  check(cudaMemcpyAsync(totals, s.totals, sizeof(totals), cudaMemcpyDeviceToHost, on),
        "cudaMemcpyAsync(spgemm)");
  check(cudaStreamSynchronize(on), "cudaStreamSynchronize(spgemm)");
  constexpr unsigned long long kMaxStored = INT32_MAX;
  if (totals[0] > kMaxStored) {
    throw Error(ErrorCode::unsupported, "spgemm: the result has " + std::to_string(totals[0]) +
                                            " blocks, a GPU supports fewer than 2^31");
  }
  pattern.stored = static_cast<std::int64_t>(totals[0]);
  pattern.products = static_cast<std::int64_t>(totals[1]);

  const std::int64_t offsets_bytes = (s.rows + 1) * std::int64_t{sizeof(std::int32_t)};
  const planning::OperandShape &left = shape.a, &right = shape.b;
  const std::int64_t block_rows = left.transposed ? left.block.cols : left.block.rows;
  const std::int64_t block_cols = right.transposed ? right.block.rows : right.block.cols;
  const bool ordered = block_rows == 128 && block_cols == 128;  // few, and each takes long
  const std::int64_t ordered_bytes =
      ordered ? pattern.stored * std::int64_t{sizeof(spgemm::PlannedBlock)} : 0;
  pattern.memory =
      lasting(ordered_bytes + offsets_bytes + pattern.stored * std::int64_t{sizeof(std::int32_t)},
              shape.device.index);
  auto* const lists = static_cast<std::byte*>(pattern.memory.get()) + ordered_bytes;
  pattern.offsets = reinterpret_cast<std::int32_t*>(lists);
  pattern.columns = pattern.offsets + s.rows + 1;
  check(cudaMemcpyAsync(pattern.offsets, s.offsets, static_cast<std::size_t>(offsets_bytes),
                        cudaMemcpyDeviceToDevice, on),
        "cudaMemcpyAsync(spgemm)");
  s.columns = pattern.columns;
  Kernel<columns_kernel>::launch({"columns_kernel", grid, kThreads, stream}, s);
  if (ordered) {
    pattern.blocks = static_cast<spgemm::PlannedBlock*>(pattern.memory.get());
    spgemm::order_blocks(spgemm::Lists(s.a), spgemm::right_blocks(problem),
                         spgemm::lists_of(pattern), pattern.blocks, stream);
  }
  return pattern;
}

}  // namespace tessera::cuda
