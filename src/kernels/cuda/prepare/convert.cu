#include "src/kernels/cuda/prepare/convert.hpp"

#include <initializer_list>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/problem/expand.hpp"

// Copies between dense matrices and stored blocks, and norms of blocks. All of it is bound by
// memory: rows are read and written in words of up to 16 bytes where strides allow.
namespace tessera::cuda {
namespace {

using planning::BlockCopy;
using planning::BsrRow;
using planning::NormsShape;

constexpr int kThreads = 256, kWarps = kThreads / kLanes;
constexpr int kTileColumns = 256;        // columns of blocks per tile of to_dense
constexpr int kTileRows = 16;            // rows per tile of to_dense
constexpr int kAhead = 4;                // loads in flight
constexpr int kPiece = kAhead * kLanes;  // words per copy of a warp
constexpr __host__ __device__ unsigned pieces_of(unsigned words) {
  return (words + kPiece - 1) / kPiece;
}

/// Writes every element of a tile of the dense matrix: first finds which stored block covers each
/// column of blocks, then copies. Grid: tiles along a row of blocks, pieces of all rows of blocks,
/// batches.
template <class Word>
__global__ void __launch_bounds__(kThreads) to_dense_kernel(BlockCopy c) {
  // Of a block that a list names twice, the first entry counts, as in sm90_bsr.
  constexpr unsigned long long kNone = ~0ull;
  __shared__ unsigned long long positions[kTileColumns];
  const auto* pool = static_cast<const Word*>(c.pool.data);
  auto* dense = static_cast<Word*>(c.dense.data);
  const std::int64_t first = std::int64_t{blockIdx.x} * kTileColumns;
  const std::int64_t left = c.lists.block_cols - first;
  const unsigned columns = left < kTileColumns ? left : kTileColumns;
  const unsigned width = c.block_cols;
  const std::int64_t pieces = (c.block_rows + kTileRows - 1) / kTileRows;
  for (std::int64_t y = blockIdx.y; y < c.lists.block_rows * pieces; y += gridDim.y) {
    const std::int64_t i = y / pieces, begin = y % pieces * kTileRows;
    const std::int64_t end = planning::clamp_to(begin + kTileRows, 0, c.block_rows);
    for (std::int64_t batch = blockIdx.z; batch < c.batches; batch += gridDim.z) {
      for (unsigned j = threadIdx.x; j < columns; j += kThreads) positions[j] = kNone;
      __syncthreads();
      const BsrRow row = c.lists.row(batch, i);
      for (std::int64_t e = row.begin + threadIdx.x; e < row.end; e += kThreads) {
        const std::int64_t j = row.column(e) - first;
        if (j >= 0 && j < columns) atomicMin(&positions[j], static_cast<unsigned long long>(e));
      }
      __syncthreads();
      Word* tile = dense + c.dense.at(batch, i * c.block_rows + begin, first * width);
      for (unsigned w = threadIdx.x; w < columns * width; w += kThreads) {
        const unsigned j = w / width;
        const unsigned long long p = positions[j];
        const Word* from = p == kNone ? nullptr
                                      : pool + c.pool.at(batch, static_cast<std::int64_t>(p), begin,
                                                         w - j * width);
        Word* to = tile + w * c.dense.col;
        for (std::int64_t r = 0; r < end - begin; r += kAhead) {
          Word words[kAhead] = {};
#pragma unroll
          for (int a = 0; a < kAhead; ++a)
            if (from && r + a < end - begin) words[a] = from[(r + a) * c.pool.row];
#pragma unroll
          for (int a = 0; a < kAhead; ++a)
            if (r + a < end - begin) to[(r + a) * c.dense.row] = words[a];
        }
      }
      __syncthreads();
    }
  }
}

/// A warp copies a piece of a block. Grid: warps for the pieces of one row of blocks, rows of
/// blocks, batches.
template <class Word>
__global__ void __launch_bounds__(kThreads) gather_kernel(BlockCopy c) {
  const auto* dense = static_cast<const Word*>(c.dense.data);
  auto* pool = static_cast<Word*>(c.pool.data);
  const unsigned lane = threadIdx.x % kLanes, width = c.block_cols;
  const unsigned words = c.block_rows * c.block_cols, pieces = pieces_of(words);
  const std::int64_t warp = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  const std::int64_t warps = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t i = blockIdx.y; i < c.lists.block_rows; i += gridDim.y) {
    for (std::int64_t batch = blockIdx.z; batch < c.batches; batch += gridDim.z) {
      const BsrRow row = c.lists.row(batch, i);
      for (std::int64_t item = warp; item < row.size() * pieces; item += warps) {
        const std::int64_t e = row.begin + item / pieces, j = row.column(e);
        if (j < 0) continue;
        const Word* block = dense + c.dense.at(batch, i * c.block_rows, j * width);
        const unsigned first = item % pieces * kPiece + lane;
        Word copy[kAhead];
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          const unsigned w = first + a * kLanes, r = w / width;
          if (w < words) copy[a] = block[c.dense.at(0, r, w - r * width)];
        }
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          const unsigned w = first + a * kLanes, r = w / width;
          if (w < words) pool[c.pool.at(batch, e, r, w - r * width)] = copy[a];
        }
      }
    }
  }
}

template <int kBytes>
struct WordOf {
  using Type = uint4;
};
template <>
struct WordOf<1> {
  using Type = std::uint8_t;
};
template <>
struct WordOf<2> {
  using Type = std::uint16_t;
};
template <>
struct WordOf<4> {
  using Type = std::uint32_t;
};
template <>
struct WordOf<8> {
  using Type = std::uint64_t;
};

/// Whether `row` elements of `element` bytes from each of `starts`, and steps of each of `strides`
/// elements, are whole words of `bytes`, and all `columns` (strides along a row) are 1.
bool in_words(std::int64_t bytes, std::int64_t element, std::int64_t row,
              std::initializer_list<const void*> starts,
              std::initializer_list<std::int64_t> columns,
              std::initializer_list<std::int64_t> strides) {
  const auto whole = [&](std::int64_t elements) { return elements * element % bytes == 0; };
  return whole(row) && std::all_of(strides.begin(), strides.end(), whole) &&
         std::all_of(columns.begin(), columns.end(), [](std::int64_t s) { return s == 1; }) &&
         std::all_of(starts.begin(), starts.end(), [&](const void* p) {
           return reinterpret_cast<std::uintptr_t>(p) % static_cast<std::uintptr_t>(bytes) == 0;
         });
}

/// Calls `use(word, copy)` with the widest possible word, and the copy's sizes and strides in such
/// words.
template <int kBytes = 16, class Use>
void with_words(BlockCopy c, const Use& use) {
  const std::int64_t element = size_of(c.dtype);
  if (element == kBytes) return use(typename WordOf<kBytes>::Type{}, c);
  if constexpr (kBytes > 1) {
    if (element > kBytes ||
        !in_words(kBytes, element, c.block_cols, {c.dense.data, c.pool.data},
                  {c.dense.col, c.pool.col},
                  {c.dense.batch, c.dense.row, c.pool.batch, c.pool.block, c.pool.row})) {
      return with_words<kBytes / 2>(c, use);
    }
    const std::int64_t each = kBytes / element;
    for (std::int64_t* count :
         {&c.dense.batch, &c.dense.row, &c.pool.batch, &c.pool.block, &c.pool.row, &c.block_cols})
      *count /= each;
    use(typename WordOf<kBytes>::Type{}, c);
  }
}

void check_block(const char* call, std::int64_t rows, std::int64_t cols) {
  if (rows <= planning::kMaxBlockElements / cols) return;
  throw Error(ErrorCode::unsupported, std::string(call) + ": values: on a GPU, blocks of at most " +
                                          std::to_string(planning::kMaxBlockElements) +
                                          " elements, got " + std::to_string(rows) + " x " +
                                          std::to_string(cols));
}

/// `kVector` elements, loaded by one instruction.
template <class T, int kVector>
struct alignas(sizeof(T) * kVector) Pack {
  T x[kVector];
};

/// Norms of blocks, one warp per block. The order of additions is fixed, so the sum has the same
/// bits each time.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) norms_kernel(NormsShape s) {
  const auto* dense = static_cast<const T*>(s.dense.data);
  const unsigned lane = threadIdx.x % kLanes, width = s.block_cols / kVector;
  const unsigned packs = s.block_rows * width;
  const std::int64_t j = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
  if (j >= s.cols) return;
  for (std::int64_t i = blockIdx.y; i < s.rows; i += gridDim.y) {
    for (std::int64_t batch = blockIdx.z; batch < s.batches; batch += gridDim.z) {
      const T* block = dense + s.dense.at(batch, i * s.block_rows, j * s.block_cols);
      double sum = 0;
      std::uint32_t largest = 0;  // the maximum's bits; they order like the numbers, NaN above all
#pragma unroll 2
      for (unsigned w = lane; w < packs; w += kLanes) {
        const unsigned r = w / width, c = (w - r * width) * kVector;
        const auto pack = *reinterpret_cast<const Pack<T, kVector>*>(block + s.dense.at(0, r, c));
#pragma unroll
        for (int v = 0; v < kVector; ++v) {
          const float x = to_float(pack.x[v]);
          if (s.norm == BlockNorm::largest)
            largest = max(largest, __float_as_uint(fabsf(x)));
          else
            sum += double{x} * double{x};
        }
      }
      float norm = 0;
      if (s.norm == BlockNorm::largest) {
        norm = __uint_as_float(__reduce_max_sync(kAllLanes, largest));
      } else {
        norm = static_cast<float>(warp_sum(sum));
      }
      if (norm != norm) norm = __uint_as_float(0x7fc00000u);  // one NaN for all
      if (lane == 0) static_cast<float*>(s.norms.data)[s.norms.at(batch, i, j)] = norm;
    }
  }
}

}  // namespace

void to_dense(const BlockCopy& copy, const Place& place) {
  check_block("to_dense: matrix", copy.block_rows, copy.block_cols);
  const DeviceGuard guard(place.device);
  const std::int64_t tiles = (copy.lists.block_cols + kTileColumns - 1) / kTileColumns;
  const std::int64_t pieces = (copy.block_rows + kTileRows - 1) / kTileRows;
  with_words(copy, [&](auto word, const BlockCopy& c) {
    const dim3 grid = grid_of(tiles, c.lists.block_rows * pieces, c.batches);
    Kernel<to_dense_kernel<decltype(word)>>::launch(
        {"to_dense_kernel", grid, kThreads, place.stream}, c);
  });
}

void gather_blocks(const BlockCopy& copy, const Place& place) {
  check_block("gather_blocks: out", copy.block_rows, copy.block_cols);
  const DeviceGuard guard(place.device);
  if (copy.lists.block_rows == 0) return;
  // Enough warps for a row of mean length; longer rows take several rounds.
  const std::int64_t mean = copy.lists.stored / copy.lists.block_rows + 1;
  with_words(copy, [&](auto word, const BlockCopy& c) {
    const std::int64_t items = mean * pieces_of(static_cast<unsigned>(c.block_rows * c.block_cols));
    const dim3 grid = grid_of((items + kWarps - 1) / kWarps, c.lists.block_rows, c.batches);
    Kernel<gather_kernel<decltype(word)>>::launch({"gather_kernel", grid, kThreads, place.stream},
                                                  c);
  });
}

void block_norms(const NormsShape& s, const Place& place) {
  check_block("block_norms: dense", s.block_rows, s.block_cols);
  const DeviceGuard guard(place.device);
  const Launch how{"norms_kernel", grid_of((s.cols + kWarps - 1) / kWarps, s.rows, s.batches),
                   kThreads, place.stream};
  with_element(s.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kVector = 16 / sizeof(T);
    const bool wide = in_words(16, sizeof(T), s.block_cols, {s.dense.data}, {s.dense.col},
                               {s.dense.batch, s.dense.row});
    wide ? Kernel<norms_kernel<T, kVector>>::launch(how, s)
         : Kernel<norms_kernel<T, 1>>::launch(how, s);
  });
}

}  // namespace tessera::cuda
