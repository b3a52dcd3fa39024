#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/matmul/descriptors.cuh"
#include "src/kernels/cuda/sm90/matmul/traits.cuh"
#include "src/kernels/cuda/sm90/matmul/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"

// Two warps fill the ring. The scheduler warp takes tiles, reads lists and waits for memory. The
// producer warp follows its work descriptors step by step; it waits only for free stages and needs
// few instructions per step.
namespace tessera::cuda::sm90::matmul {

template <class T>
class Scheduler {
 public:
  __device__ Scheduler(const Arguments& args, typename T::Shared& shared, int lane)
      : args_(args), shared_(shared), lane_(lane) {}

  __device__ void run() {
    const Walk& walk = args_.walk;
    TileCursor<T::kShape.m, T::kShape.n> tiles(walk, args_.tiles);
    for (TileAt tile; tiles.next(tile);) {
      WorkDescriptor<kLines> work;
      work.place = {tile.row, tile.col, tile.row_end, tile.col_end, tile.batch};
      work.b_matrix = tile.batch * walk.b_batch_step;
      if (walk.sparse) {
        schedule_lists(work, tile);
      } else {
        schedule_depth(work, tile);
      }
    }
    WorkDescriptor<kLines> end;
    end.no_more_tiles = true;
    publish(end);
  }

 private:
  static constexpr int kLines = T::kLines;

  /// Dense: one work descriptor per tile, for its whole depth.
  __device__ void schedule_depth(WorkDescriptor<kLines>& work, const TileAt& tile) {
    const Walk& walk = args_.walk;
    const Walk::Depth depth =
        walk.template depth<T::kDepth>(tile, static_cast<int>(blockIdx.x) % walk.splits);
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      work.row[l] = tile.row + l * tile::kLine;
      work.matrix[l] = tile.batch * walk.a_batch_step;
    }
    work.depth = depth.begin;
    work.parts = depth.parts;
    work.skip = depth.skip;
    work.valid = depth.valid;
    work.ends_tile = true;
    publish(work);
  }

  /// Sparse: one work descriptor per window of 32 columns of blocks, and one that ends the tile.
  __device__ void schedule_lists(WorkDescriptor<kLines>& work, const TileAt& tile) {
    const Walk& walk = args_.walk;
    const int first = tile.row / tile::kLine, per_block = walk.lines_per_block;
    const auto pool = static_cast<int>(tile.batch * walk.pool_step);
    int row = first / per_block, within = first % per_block;
    LineCursor lines[kLines];
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      lines[l].begin(walk, tile.batch, row, lane_);
      work.row[l] = within * tile::kLine;
      if (++within == per_block) ++row, within = 0;
    }
    ColumnWindow<kLines> window;
    while (window.open(lines, walk, tile.batch, lane_)) {
      work.first = window.first;
#pragma unroll
      for (int l = 0; l < kLines; ++l)
        window.read_line(l, args_.whole_a, pool, work.named[l], work.matrix[l]);
      publish(work);
    }
#pragma unroll
    for (unsigned& named : work.named) named = 0;
    work.ends_tile = true;
    publish(work);
  }

  /// Publishes a work descriptor, which is equal in all lanes.
  __device__ void publish(const WorkDescriptor<kLines>& work) {
    if (lane_ == 0) {
      tile::wait(&shared_.work_ring.empty[at_.stage], at_.parity ^ 1);
      shared_.work_queue[at_.stage] = work;
      tile::arrive(&shared_.work_ring.full[at_.stage]);
    }
    at_.advance();
    __syncwarp();
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int lane_;
  tile::RingCursor<T::kWorkDescriptors> at_;
};

/// The producer. One lane runs it, chosen by elect.sync so that the compiler knows that only one
/// lane issues copies.
template <class T>
class Producer {
 public:
  __device__ Producer(const Arguments& args, typename T::Shared& shared)
      : args_(args), shared_(shared) {
    address_a_ = tile::shared_address(shared.a);
    address_b_ = tile::shared_address(shared.b);
    address_full_ = tile::shared_address(shared.ring.full);
  }

  __device__ void run() {
    tile::RingCursor<T::kWorkDescriptors> work_at;
    while (true) {
      tile::wait(&shared_.work_ring.full[work_at.stage], work_at.parity);
      const WorkDescriptor<kLines> work = shared_.work_queue[work_at.stage];
      tile::arrive(&shared_.work_ring.empty[work_at.stage]);
      work_at.advance();
      if (work.no_more_tiles) break;
      if (args_.walk.sparse) {
        load_blocks(work);
      } else {
        load_depth(work);
      }
      if (work.ends_tile) {
        tile::wait(&shared_.ring.empty[at_.stage], at_.parity ^ 1);
        shared_.stage_descriptors[at_.stage].place = work.place;
        announce({.use = StageUse::store}, 0);
        at_.advance();
      }
    }
    announce({.use = StageUse::end}, 0);
  }

 private:
  static constexpr int kLines = T::kLines;
  static constexpr unsigned kAllLines = (1u << kLines) - 1;

  /// Loads the steps of a dense tile.
  __device__ void load_depth(const WorkDescriptor<kLines>& work) {
#pragma unroll 1
    for (int part = 0; part < work.parts; ++part) {
      const int from = part == 0 ? work.skip : 0;
      const int to = part == work.parts - 1 ? work.valid : T::kDepth;
      announce({.consumers = kAllLines,
                .from = static_cast<std::uint8_t>(from),
                .to = static_cast<std::uint8_t>(to)},
               T::kStageBytes, work, work.depth + part * T::kDepth, work.matrix);
      const int depth = work.depth + part * T::kDepth;
      copy_a(work, kAllLines, depth, work.matrix);
      copy_b(work, depth);
      at_.advance();
    }
  }

  /// Loads the steps of a window: for each column that any line names, B and the blocks of these
  /// lines.
  __device__ void load_blocks(const WorkDescriptor<kLines>& work) {
    const int parts = args_.walk.block_depth / T::kDepth;
    unsigned columns = 0;
#pragma unroll
    for (const unsigned named : work.named) columns |= named;
#pragma unroll 1
    for (; columns != 0; columns &= columns - 1) {
      const unsigned column = columns & (0 - columns);
      unsigned lines = 0;
      int matrix[kLines];
#pragma unroll
      for (int l = 0; l < kLines; ++l) {
        if (work.named[l] & column) lines |= 1u << l;
        matrix[l] = work.matrix[l] + __popc(work.named[l] & (column - 1));
      }
      const int bytes = T::BTile::kBytes + __popc(lines) * T::kLineBytes;
      const int b_depth = (work.first + __popc(column - 1)) * args_.walk.block_depth;
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        announce({.consumers = static_cast<std::uint8_t>(lines)}, bytes, work,
                 b_depth + part * T::kDepth, matrix);
        copy_a(work, lines, part * T::kDepth, matrix);
        copy_b(work, b_depth + part * T::kDepth);
        at_.advance();
      }
    }
  }

  /// Waits until the next stage is free, writes its task, and arrives at its `full` barrier, which
  /// then expects `bytes` from TMA.
  __device__ void announce(Task task, int bytes) {
    tile::wait(&shared_.ring.empty[at_.stage], at_.parity ^ 1);
    shared_.stage_descriptors[at_.stage].task = task;
    tile::arrive_expecting(&shared_.ring.full[at_.stage], static_cast<std::uint32_t>(bytes));
  }

  /// The same of a step; FP8 operands have factors, which the consumers look up.
  __device__ void announce(Task task, int bytes, const WorkDescriptor<kLines>& work, int depth,
                           const int (&matrix)[kLines]) {
    if constexpr (T::kNarrow) {
      tile::wait(&shared_.ring.empty[at_.stage], at_.parity ^ 1);
      auto& about = shared_.stage_descriptors[at_.stage];
      about.place = work.place;
      about.depth = depth;
#pragma unroll
      for (int l = 0; l < kLines; ++l) about.matrix[l] = matrix[l];
    }
    announce(task, bytes);
  }

  __device__ std::uint32_t full() const {
    return address_full_ + at_.stage * sizeof(std::uint64_t);
  }

  __device__ void copy_a(const WorkDescriptor<kLines>& work, unsigned lines, int depth,
                         const int (&matrix)[kLines]) {
    constexpr bool kDeep = T::kMajorA == Major::k;
    const std::uint32_t to = address_a_ + at_.stage * T::ATile::kBytes;
    if (args_.whole_a) {
      if constexpr (kDeep)
        tile::copy_box(to, args_.a, depth, work.row[0], 0, matrix[0], full());
      else
        tile::copy_box(to, args_.a, 0, depth, work.row[0] / tile::kLine, matrix[0], full());
      return;
    }
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      if (lines >> l & 1)
        tile::copy_box(to + l * T::kLineBytes, args_.a, kDeep ? depth : work.row[l],
                       kDeep ? work.row[l] : depth, 0, matrix[l], full());
    }
  }

  __device__ void copy_b(const WorkDescriptor<kLines>& work, int depth) {
    const std::uint32_t to = address_b_ + at_.stage * T::BTile::kBytes;
    const int col = work.place.col;
    if constexpr (T::kMajorB == Major::k) {
      tile::copy_box(to, args_.b, depth, col, 0, work.b_matrix, full());
    } else if (args_.whole_b) {
      tile::copy_box(to, args_.b, 0, depth, col / tile::kLine, work.b_matrix, full());
    } else {
#pragma unroll 1
      for (int p = 0; p < T::BTile::kPanels; ++p)
        tile::copy_box(to + p * T::BTile::kPanelBytes, args_.b, col + p * tile::kLine, depth, 0,
                       work.b_matrix, full());
    }
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  std::uint32_t address_a_, address_b_, address_full_;
  tile::RingCursor<T::kStages> at_;
};

}  // namespace tessera::cuda::sm90::matmul
