#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/copy.cuh"
#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/sm80/attention/shape.cuh"

// Copies of Q, K and V into shared memory with cp.async.
namespace tessera::cuda::sm80::attention {

using cuda::shared_address;
using cuda::wait_for_copies;

/// Starts a thread's copies of `kCount` rows. `from`: its first chunk. Rows without their bit in
/// `kept` are not read: zeros take their place, so that a NaN in a row that nothing sees does no
/// harm.
template <class Rows, int kCount, int kAtOnce, class Share, class Element>
__device__ __forceinline__ void copy_rows(std::uint32_t to, const Source& source, const Share& mine,
                                          const Element* from, std::uint64_t kept) {
  const auto* const data = static_cast<const Element*>(source.data);
  to += Rows::offset(mine.row, mine.chunk);
  kept >>= mine.row;
#pragma unroll kAtOnce
  for (int down = 0; down < kCount; down += Share::kDown) {
    const bool keeps = (kept >> down & 1) != 0;
    const Element* const at = keeps ? from : data;
#pragma unroll
    for (int across = 0; across < Rows::kChunks; across += Share::kAcross) {
      const bool exists = (across + mine.chunk) * Rows::kChunkColumns < source.dim;
      copy_chunk(Rows::to_right(to, across) + down * Rows::kLineBytes,
                 at + across * Rows::kChunkColumns, keeps && exists);
    }
    from += Share::kDown * source.row;
  }
}

/// The same of rows all of which are kept, with all columns: in far fewer instructions.
template <class Rows, int kCount, int kAtOnce, class Share, class Element>
__device__ __forceinline__ void copy_whole_rows(std::uint32_t to, const Source& source,
                                                const Share& mine, const Element* from) {
  to += Rows::offset(mine.row, mine.chunk);
#pragma unroll kAtOnce
  for (int down = 0; down < kCount; down += Share::kDown) {
#pragma unroll
    for (int across = 0; across < Rows::kChunks; across += Share::kAcross)
      copy_whole_chunk(Rows::to_right(to, across) + down * Rows::kLineBytes,
                       from + across * Rows::kChunkColumns);
    from += Share::kDown * source.row;
  }
}

/// Starts this thread's copies of the keys (or values) of a piece in pages.
template <class T, class Rows>
__device__ __forceinline__ void copy_paged_piece(std::uint32_t to, const Source& source,
                                                 const TileDescriptor& tile, const PagedKeys& keys,
                                                 int rows_of_page, std::uint64_t kept) {
  using Element = typename T::Element;
  using Share = CopyShare<Rows, T::kThreads>;
  const Share mine = Share::of(thread_of_block());
  const Element* const head = static_cast<const Element*>(source.data) +
                              tile.kv_head * source.head + mine.chunk * Rows::kChunkColumns;
  to += Rows::offset(mine.row, mine.chunk);
#pragma unroll 1
  for (int down = 0; down < T::kN; down += Share::kDown) {
    const int row = mine.row + down;
    const bool keeps = (kept >> row & 1) != 0;
    const Element* const from =
        keeps ? head + keys.page[row / PagedKeys::kKeys] * source.batch +
                    std::int64_t{keys.row + (row & (rows_of_page - 1))} * source.row
              : static_cast<const Element*>(source.data);
#pragma unroll
    for (int across = 0; across < Rows::kChunks; across += Share::kAcross) {
      const bool exists = (across + mine.chunk) * Rows::kChunkColumns < source.dim;
      copy_chunk(Rows::to_right(to, across) + down * Rows::kLineBytes,
                 from + across * Rows::kChunkColumns, keeps && exists);
    }
  }
}

/// This thread's share of copies of the keys (or values) of a piece, and its first chunk of the
/// piece that begins at element `of_piece`.
template <class T, class Rows>
struct PieceCopies {
  using Element = typename T::Element;
  using Share = CopyShare<Rows, T::kThreads>;
  static constexpr int kAtOnce = T::kStages > 1 ? T::kN / Share::kDown : 1;

  Share mine;
  const Element* from;

  __device__ __forceinline__ PieceCopies(const Source& source, std::int64_t of_piece)
      : mine(Share::of(thread_of_block())),
        from(static_cast<const Element*>(source.data) + of_piece + mine.row * source.row +
             mine.chunk * Rows::kChunkColumns) {}
};

/// Starts this thread's copies of a piece; keys that are not in `kept` become zeros.
template <class T, class Rows>
__device__ __forceinline__ void copy_piece(std::uint32_t to, const Source& source,
                                           std::int64_t of_piece, std::uint64_t kept) {
  using Copies = PieceCopies<T, Rows>;
  const Copies copies(source, of_piece);
  copy_rows<Rows, T::kN, Copies::kAtOnce>(to, source, copies.mine, copies.from, kept);
}
/// Starts this thread's copies of a piece, all rows and columns of which are kept.
template <class T, class Rows>
__device__ __forceinline__ void copy_whole_piece(std::uint32_t to, const Source& source,
                                                 std::int64_t of_piece) {
  using Copies = PieceCopies<T, Rows>;
  const Copies copies(source, of_piece);
  copy_whole_rows<Rows, T::kN, Copies::kAtOnce>(to, source, copies.mine, copies.from);
}

/// Starts this thread's copies of a tile's queries; rows without a query become zeros.
template <class T>
__device__ __forceinline__ void copy_queries(std::uint32_t to, const Arguments& args,
                                             const TileDescriptor& tile) {
  using Element = typename T::Element;
  using Rows = typename T::Queries;
  using Share = CopyShare<Rows, T::kThreads>;
  const Share mine = Share::of(thread_of_block());
  const auto* const data = static_cast<const Element*>(args.q.data);
  const Element* const first = data + tile.batch * args.q.batch + tile.head * args.q.head +
                               (std::int64_t{tile.q_begin} + tile.first_query) * args.q.row +
                               mine.chunk * Rows::kChunkColumns;
  to += Rows::offset(mine.row, mine.chunk);
#pragma unroll 2
  for (int down = 0; down < T::kM; down += Share::kDown) {
    const int row = mine.row + down, query = args.walk.pack.quotient(row);
    const bool keeps = row < args.walk.rows() && tile.first_query + query < tile.q_length;
    const Element* const from =
        keeps ? first + query * args.q.row + (row - query * args.walk.pack.divisor) * args.q.head
              : data;
#pragma unroll
    for (int across = 0; across < Rows::kChunks; across += Share::kAcross) {
      const bool exists = (across + mine.chunk) * Rows::kChunkColumns < args.q.dim;
      copy_chunk(Rows::to_right(to, across) + down * Rows::kLineBytes,
                 from + across * Rows::kChunkColumns, keeps && exists);
    }
  }
}

}  // namespace tessera::cuda::sm80::attention
