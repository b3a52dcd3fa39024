#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm80/attention/shape.cuh"

namespace tessera::cuda::sm80::attention {

/// What a step is in the sequence of all steps of a thread block.
struct Mark {
  enum Kind : std::uint8_t { inside, begins_tile, end } kind;
  bool whole;  // all of its keys and values are copied, each with all columns
};

/// The elements at which the keys and values of a step begin.
struct alignas(16) Places {
  std::int64_t k, v;
};

/// The steps of all tiles of a thread block as one sequence. The first warp writes work descriptors
/// some steps ahead, so that loads run on from tile to tile; a barrier per step shows them to the
/// other warps. A tile that sees no key has one step without keys.
template <class T>
class Schedule {
 public:
  using Step = typename T::Step;

  /// The first warp calls this, and then `fill` for step 0.
  __device__ void start(int lane) {
    cursor_.start(lane);
    if (lane == 0) next_piece_ = 0, steps_of_tile_ = 0, ended_ = false, begun_ = false;
    __syncwarp();
  }

  /// The first warp calls this in step `step`, which belongs to tile `tile`, after the barrier at
  /// which all warps have left the step before. Writes descriptors up to step + kAhead.
  __device__ void fill(const Arguments& args, unsigned step, unsigned tile, int lane) {
    const Walk& walk = args.walk;
    while (!ended_ && cursor_.steps <= step + kAhead) {
      if (begun_ && next_piece_ < pieces_.count) {
        look_up(args, lane);
      } else if (begun_ && steps_of_tile_ == 0) {
        if (lane == 0) place(args, Piece{}, 0, 0);
        advance(1, lane);
      } else if (cursor_.tiles == tile + kTiles) {
        return;  // no free descriptor: the tiles ahead have a step or more each
      } else {
        begin_tile(walk, lane);
      }
    }
  }

  __device__ __forceinline__ Mark mark(unsigned step) const { return marks_[step % kSteps]; }
  __device__ __forceinline__ const Step& step(unsigned number) const {
    return steps_[number % kSteps];
  }
  /// The keys of a step that some query of the tile sees, as a bitmask.
  __device__ __forceinline__ std::uint64_t kept(unsigned step) const {
    return kept_[step % kSteps];
  }
  /// Where the keys and values of a step begin, without pages.
  __device__ __forceinline__ const Places& places(unsigned step) const {
    return places_[step % kSteps];
  }
  __device__ __forceinline__ const PagedKeys& paged_keys(unsigned step) const {
    return paged_.keys[step % kSteps];
  }
  __device__ __forceinline__ const TileDescriptor& tile(unsigned number) const {
    return tiles_[number % kTiles];
  }

 private:
  static constexpr unsigned kSteps = 16, kTiles = 3, kAhead = 4;
  static constexpr int kLookups = 8;  // pieces that are looked up together
  static_assert(kAhead + kLookups < kSteps);

  __device__ void begin_tile(const Walk& walk, int lane) {
    TileDescriptor& descriptor = tiles_[cursor_.tiles % kTiles];
    if (!cursor_.next(walk, descriptor, lane)) {
      if (lane == 0) marks_[cursor_.steps % kSteps] = {Mark::end, false}, ended_ = true;
    } else {
      start_pieces(pieces_, walk, descriptor, lane);
      if (lane == 0) {
        ++cursor_.tiles;
        next_piece_ = steps_of_tile_ = 0, begun_ = true;
      }
    }
    __syncwarp();
  }

  __device__ void look_up(const Arguments& args, int lane) {
    const Walk& walk = args.walk;
    const TileDescriptor& descriptor = tile(cursor_.tiles - 1);
    Piece piece;
    if (lane < kLookups) piece = pieces_.at(walk, next_piece_ + lane);
    const unsigned found = __ballot_sync(kAllLanes, piece.visited);
    if (piece.visited) {
      const int index = __popc(found & planning::lanes_below(lane));
      std::uint64_t kept = pieces_.kept(walk, descriptor, piece);
      if constexpr (T::kReadsPages)
        if (args.pages.table) kept &= find_pages(args, descriptor.batch, piece, index);
      place(args, piece, index, kept);
    }
    __syncwarp();
    if (lane == 0) next_piece_ += kLookups;
    advance(__popc(found), lane);
  }

  /// Notes the pages of a piece. Returns its keys whose pages exist; if some do not, the piece is
  /// masked.
  __device__ std::uint64_t find_pages(const Arguments& args, int batch, Piece& piece, int index) {
    constexpr int kEach = PagedKeys::kKeys;
    const planning::PageView& pages = args.pages;
    PagedKeys& keys = paged_.keys[(cursor_.steps + index) % kSteps];
    const auto size = static_cast<int>(pages.page_size);
    const int first = piece.key / size;
    const std::int32_t* const table = pages.table + batch * pages.batch_stride;
    keys.row = size < planning::kKeyPiece ? 0 : piece.key - first * size;
    std::uint64_t present = 0;
    for (int i = 0; i < planning::kKeyPiece / kEach; ++i) {
      const int at = first + (keys.row + i * kEach) / size;
      const std::int32_t page = at < pages.max_pages ? table[at * pages.entry_stride] : -1;
      const bool exists = page >= 0 && page < pages.pages;
      keys.page[i] = exists ? page : 0;
      if (exists) present |= std::uint64_t{0xFF} << i * kEach;
    }
    if (present != kAllKeys) piece.masked = kAllRowGroups;
    return present;
  }

  /// Writes the descriptor of the step `index` steps after the last one.
  __device__ void place(const Arguments& args, const Piece& piece, int index, std::uint64_t kept) {
    const unsigned at = (cursor_.steps + index) % kSteps;
    const TileDescriptor& descriptor = tile(cursor_.tiles - 1);
    const auto begin = [&](const Source& of) {
      return descriptor.batch * of.batch + descriptor.kv_head * of.head +
             (std::int64_t{descriptor.kv_begin} + piece.key) * of.row;
    };
    places_[at] = {begin(args.k), begin(args.v)};
    steps_[at].bits[0] = piece.bits;
    steps_[at].key[0] = piece.key;
    steps_[at].flags[0] = planning::flags_of(piece);
    kept_[at] = kept;
    const bool whole = kept == kAllKeys && args.k.dim == T::kDim && args.v.dim == T::kDimV &&
                       (!T::kReadsPages || !args.pages.table);
    marks_[at] = {steps_of_tile_ + index == 0 ? Mark::begins_tile : Mark::inside, whole};
  }

  __device__ void advance(int count, int lane) {
    __syncwarp();
    if (lane == 0) cursor_.steps += count, steps_of_tile_ += count;
    __syncwarp();
  }

  struct Paged {
    PagedKeys keys[kSteps];
  };
  struct NotPaged {};

  Step steps_[kSteps];
  std::uint64_t kept_[kSteps];
  Places places_[kSteps];
  typename T::Pieces pieces_;
  TileDescriptor tiles_[kTiles];
  TileCursor cursor_;
  int next_piece_, steps_of_tile_;
  bool begun_, ended_;
  Mark marks_[kSteps];
  // The last member: without pages, launches leave out its memory.
  [[no_unique_address]] std::conditional_t<T::kReadsPages, Paged, NotPaged> paged_;
};

}  // namespace tessera::cuda::sm80::attention
