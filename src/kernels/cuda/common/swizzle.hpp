#pragma once

#include "src/walk/walk.hpp"

// Where rows of 16-bit elements lie in shared memory for ldmatrix, and which lane addresses which
// chunk: index arithmetic, which host tests check. Q, K and V name the operands of attention.
namespace tessera::cuda {

/// Rows of 16-bit elements in panels of `kRows` lines of 128 bytes, or of 64 bytes where the last
/// panel would be half empty. The 16-byte chunks of a line are swizzled, so that ldmatrix, which
/// reads one chunk of eight adjacent rows at a time, finds them in different banks.
template <int kRows, int kColumns>
struct SwizzledRows {
  static constexpr int kChunkBytes = 16, kChunkColumns = 8;
  static constexpr int kLineBytes = kColumns % 64 == 0 ? 128 : 64;
  static constexpr int kLineChunks = kLineBytes / kChunkBytes;
  static constexpr int kChunks = kColumns / kChunkColumns;  // per row
  static constexpr int kPanelBytes = kRows * kLineBytes;
  static constexpr int kBytes = kChunks / kLineChunks * kPanelBytes;
  static_assert(kChunks % kLineChunks == 0 && kRows % 8 == 0);

  /// Byte offset of a chunk. Eight rows further down it is 8 * kLineBytes more.
  TESSERA_HD static constexpr int offset(int row, int chunk) {
    const int place = chunk % kLineChunks ^ row * kLineBytes / 128 % kLineChunks;
    return chunk / kLineChunks * kPanelBytes + row * kLineBytes + place * kChunkBytes;
  }
  /// The address `chunks` chunks, an even number, to the right of chunk 0 or 1 of a row, whose
  /// address is `from`. The first address of the rows is a multiple of 128.
  TESSERA_HD static constexpr unsigned to_right(unsigned from, int chunks) {
    return (from ^ static_cast<unsigned>(chunks % kLineChunks * kChunkBytes)) +
           static_cast<unsigned>(chunks / kLineChunks * kPanelBytes);
  }
};

/// The chunk whose address a lane passes to ldmatrix, which loads four blocks of 8 x 8 elements.
struct LaneChunk {
  int row, chunk;

  /// Q, the left operand: 16 rows x 2 chunks, first the rows of chunk 0.
  TESSERA_HD static constexpr LaneChunk of_queries(int lane) { return {lane % 16, lane / 16}; }
  /// K, the right operand of QK, whose depth lies along the rows' chunks: 16 keys x 2 chunks. The
  /// first two blocks are the operand of keys 0 to 7, the others of keys 8 to 15.
  TESSERA_HD static constexpr LaneChunk of_keys(int lane) {
    return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
  }
  /// V, the right operand of PV, whose depth lies across the rows (ldmatrix transposes): 16 keys x
  /// 2 chunks. The first two blocks are the operand of chunk 0, the others of chunk 1.
  TESSERA_HD static constexpr LaneChunk of_values(int lane) { return {lane % 16, lane / 16}; }
};

/// How threads share the chunks of rows that they copy: a thread copies chunks `chunk`, `chunk` +
/// kAcross, ... of rows `row`, `row` + kDown, ...
template <class Rows, int kThreads>
struct CopyShare {
  static constexpr int kAcross = Rows::kChunks % 8 == 0 ? 8 : 4, kDown = kThreads / kAcross;
  static_assert(Rows::kChunks % kAcross == 0 && kDown % 8 == 0);
  int row, chunk;

  TESSERA_HD static constexpr CopyShare of(int thread) {
    return {thread / kAcross, thread % kAcross};
  }
};

}  // namespace tessera::cuda
