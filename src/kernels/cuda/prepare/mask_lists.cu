#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/launch.cuh"
#include "src/kernels/cuda/prepare/convert.hpp"
#include "src/kernels/cuda/prepare/keep.cuh"

// Lists of block masks: from set blocks, from the best scores of each row, and by column. One warp
// writes one list; ballots and prefix sums over its lanes give each entry its place, so results do
// not depend on the order of threads.
namespace tessera::cuda {
namespace {

using planning::ListRow;
using planning::MaskColumns;
using planning::MaskRows;
using planning::SelectCut;

// ---- By row ------------------------------------------------------------------------------------

constexpr int kThreads = 256, kWarps = kThreads / kLanes;
constexpr int kHeld = 32;  // keys of a row that a lane keeps in registers

/// The key above which `keep` keys of a row remain, or all non-zero keys if there are fewer. Found
/// bit by bit, by counting keys.
template <class Load>
__device__ SelectCut cut_of(std::int64_t cols, const Load& load, std::int64_t keep) {
  std::uint32_t held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const std::int64_t col = i * kLanes + threadIdx.x % kLanes;
    held[i] = col < cols ? load(col) : 0;
  }
  constexpr std::int64_t kRest = kHeld * kLanes;
  const auto at_least = [&](std::uint32_t least) {  // `least` is not 0
    std::uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) count += held[i] >= least;
    for_each_key(
        cols - kRest, [&](std::int64_t col) { return load(kRest + col); },
        [&](std::int64_t, std::uint32_t key, bool) { count += key >= least; });
    return std::int64_t{__reduce_add_sync(kAllLanes, count)};
  };
  std::uint32_t cut = 0;
  for (std::uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
    const std::int64_t left = at_least(cut | bit);
    if (left >= keep) cut |= bit;
    if (left == keep) return {cut - 1, 0};  // for any lower bits
  }
  // No score has the largest key, so cut + 1 does not overflow.
  return {cut, cut == 0 ? 0 : keep - at_least(cut + 1)};
}

constexpr int kPiece = 16;  // blocks of a row per lane and round

/// One bit per block of a piece: whether it exists and is set.
__device__ std::uint32_t set_blocks(const std::uint8_t* row, std::int64_t stride,
                                    std::int64_t first, std::int64_t cols) {
  const std::uint8_t* const piece = row + first * stride;
  std::uint32_t bits = 0;
  if (stride == 1 && cols - first >= kPiece &&
      reinterpret_cast<std::uintptr_t>(piece) % kPiece == 0) {
    const auto [x, y, z, w] = *reinterpret_cast<const uint4*>(piece);
    const std::uint32_t words[4] = {x, y, z, w};
    // Moves the ones of four bytes together, from bit 24 on.
#pragma unroll
    for (int i = 0; i < 4; ++i)
      bits |= (__vsetgtu4(words[i], 0) * 0x01020408u >> 24 & 0xF) << 4 * i;
  } else {
    for (int j = 0; j < kPiece && first + j < cols; ++j)
      bits |= std::uint32_t{piece[j * stride] != 0} << j;
  }
  return bits;
}

/// Writes the columns of a line's set blocks. Returns the end that they would have with enough
/// room.
__device__ std::int64_t write_set(const MaskRows& s, std::int64_t line, std::int64_t begin,
                                  std::int64_t end) {
  const int lane = threadIdx.x % kLanes;
  const auto row_of = [&](const void* blocks, const planning::ListStrides& strides) {
    return static_cast<const std::uint8_t*>(blocks) + s.begin(strides, line);
  };
  std::int64_t at = begin;
  for (std::int64_t part = 0; part < s.cols; part += kLanes * kPiece) {
    const std::int64_t first = part + lane * kPiece;
    std::uint32_t bits = set_blocks(row_of(s.blocks, s.strides), s.strides.entry, first, s.cols);
    if (s.except)
      bits &=
          ~set_blocks(row_of(s.except, s.except_strides), s.except_strides.entry, first, s.cols);
    const int mine = __popc(bits), through = sum_through(lane, mine);
    std::int64_t slot = at + through - mine;
    for (; bits != 0 && slot < end; bits &= bits - 1, ++slot)
      s.indices.set(slot, first + __ffs(bits) - 1);
    at += __shfl_sync(kAllLanes, through, kLanes - 1);
  }
  return at;
}

/// The same for the blocks with the best scores.
template <class T>
__device__ std::int64_t write_best(const MaskRows& s, std::int64_t line, std::int64_t begin,
                                   std::int64_t end) {
  const T* scores = static_cast<const T*>(s.blocks) + s.begin(s.strides, line);
  const auto load = [&](std::int64_t col) {
    return planning::score_key(to_float(scores[col * s.strides.entry]));
  };
  constexpr std::uint32_t kAboveAll = ~0u;
  const SelectCut cut = s.keep == 0 ? SelectCut{kAboveAll} : cut_of(s.cols, load, s.keep);
  return write_kept(s.cols, load, cut, s.indices, begin, end);
}

/// Lists by row, one warp per list: of set blocks if T is a byte, else of the best scores.
template <class T>
__global__ void __launch_bounds__(kThreads) rows_kernel(MaskRows s) {
  const std::int64_t step = std::int64_t{gridDim.x} * kWarps;
  for (std::int64_t line = std::int64_t{blockIdx.x} * kWarps + threadIdx.x / kLanes;
       line < s.lines(); line += step) {
    const std::int64_t begin = line * s.capacity, end = begin + s.capacity;
    std::int64_t count;
    if constexpr (sizeof(T) == 1)
      count = write_set(s, line, begin, end) - begin;
    else
      count = write_best<T>(s, line, begin, end) - begin;
    if (threadIdx.x % kLanes == 0) s.counts.set(line, count < s.capacity ? count : s.capacity);
  }
}

// ---- By column ---------------------------------------------------------------------------------

constexpr int kBand = 32;      // rows per band, one warp each
constexpr int kColumns = 128;  // columns per CTA
constexpr int kEach = kColumns / kBand;

/// For this warp's row: writes which entry names each column of the tile (its number plus 1; 0:
/// none).
__device__ void note_entries(const ListRow& row, std::int64_t first, std::int64_t cols,
                             std::uint32_t* entries) {
  constexpr int kAhead = 4;  // loads in flight
  const std::int64_t lane = threadIdx.x % kLanes, left = cols - first;
  const std::int64_t width = left < kColumns ? left : kColumns;
  for (int j = lane; j < kColumns; j += kLanes) entries[j] = 0;
  __syncwarp();
  for (std::int64_t e = lane; e < row.size; e += kAhead * kLanes) {
    std::int64_t column[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t entry = e + i * kLanes;
      column[i] = entry < row.size ? row[entry] - first : -1;
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (column[i] >= 0 && column[i] < width)
        entries[column[i]] = static_cast<std::uint32_t>(e + i * kLanes + 1);
  }
}

/// Lists by column. A CTA has a tile of columns and walks all rows in bands: each warp first reads
/// one row of a band; then each warp takes a few columns, with one row per lane.
__global__ void __launch_bounds__(kBand* kLanes) columns_kernel(MaskColumns s) {
  __shared__ std::uint32_t entries[kBand][kColumns + 1];  // padded: lanes read down a column
  const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes;
  const unsigned before_lane = (1u << lane) - 1;
  const std::int64_t first = std::int64_t{blockIdx.x} * kColumns;
  for (std::int64_t set = blockIdx.y; set < s.sets(); set += gridDim.y) {
    const std::int64_t line = set * s.cols + first + warp * kEach;
    std::int64_t counts[kEach] = {};
    for (std::int64_t band = 0; band < s.stored.rows; band += kBand) {
      note_entries(s.stored.row(set / s.heads, set % s.heads, band + warp), first, s.cols,
                   entries[warp]);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const std::uint32_t entry = entries[lane][warp * kEach + i];
        const unsigned there = __ballot_sync(kAllLanes, entry != 0);
        const std::int64_t slot = counts[i] + __popc(there & before_lane);
        if (entry != 0 && slot < s.capacity) {
          const std::int64_t at = (line + i) * s.capacity + slot;
          s.rows.set(at, band + lane);
          if (s.entries) s.entries.set(at, entry - 1);
        }
        counts[i] += __popc(there);
      }
      __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane == 0 && first + warp * kEach + i < s.cols)
        s.counts.set(line + i, counts[i] < s.capacity ? counts[i] : s.capacity);
  }
}

}  // namespace

void list_rows(const MaskRows& s, const Place& place) {
  const DeviceGuard guard(place.device);
  const dim3 grid = grid_of((s.lines() + kWarps - 1) / kWarps);
  const auto run = [&](auto element) {
    Kernel<rows_kernel<decltype(element)>>::launch({"rows_kernel", grid, kThreads, place.stream},
                                                   s);
  };
  if (s.dtype == DType::u8)
    run(std::uint8_t{});
  else
    with_element(s.dtype, run);
}

void list_columns(const MaskColumns& s, const Place& place) {
  const DeviceGuard guard(place.device);
  const dim3 grid = grid_of((s.cols + kColumns - 1) / kColumns, s.sets());
  Kernel<columns_kernel>::launch({"columns_kernel", grid, kBand * kLanes, place.stream}, s);
}

}  // namespace tessera::cuda
