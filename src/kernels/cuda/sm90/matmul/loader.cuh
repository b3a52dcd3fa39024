#pragma once

#include <cstdint>

#include "src/kernels/cuda/sm90/matmul/notes.cuh"
#include "src/kernels/cuda/sm90/matmul/traits.cuh"
#include "src/kernels/cuda/sm90/matmul/walk.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/copy.cuh"

// Two warps fill the ring. The scout walks tiles and lists, which means waiting for memory; the
// loader follows its orders step by step, waits for nothing but free stages, and takes few
// instructions a step.
namespace tessera::cuda::sm90::matmul {

template <class T>
class Scout {
 public:
  __device__ Scout(const Arguments& args, typename T::Shared& shared, int lane)
      : args_(args), shared_(shared), lane_(lane) {}

  __device__ void run() {
    const Walk& walk = args_.walk;
    TileCursor<T::kShape.m, T::kShape.n> tiles(walk, args_.tiles);
    for (TileAt tile; tiles.next(tile);) {
      Order<kLines> order;
      order.place = {tile.row, tile.col, tile.row_end, tile.col_end, tile.batch};
      order.b_matrix = tile.batch * walk.b_batch_step;
      if (walk.sparse) {
        order_lists(order, tile);
      } else {
        order_depth(order, tile);
      }
    }
    Order<kLines> end;
    end.ends_all = true;
    send(end);
  }

 private:
  static constexpr int kLines = T::kLines;

  __device__ void order_depth(Order<kLines>& order, const TileAt& tile) {
    const Walk& walk = args_.walk;
    const Walk::Depth depth = walk.depth(tile, static_cast<int>(blockIdx.x) % walk.splits);
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      order.row[l] = tile.row + l * tile::kLine;
      order.matrix[l] = tile.batch * walk.a_batch_step;
    }
    order.depth = depth.begin;
    order.parts = depth.parts;
    order.skip = depth.skip;
    order.valid = depth.valid;
    order.ends_tile = true;
    send(order);
  }

  __device__ void order_lists(Order<kLines>& order, const TileAt& tile) {
    const Walk& walk = args_.walk;
    const int first = tile.row / tile::kLine, per_block = walk.lines_per_block;
    const auto pool = static_cast<int>(tile.batch * walk.pool_step);
    int row = first / per_block, within = first % per_block;
    LineCursor lines[kLines];
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      lines[l].begin(walk, tile.batch, row, lane_);
      order.row[l] = within * tile::kLine;
      if (++within == per_block) ++row, within = 0;
    }
    ColumnWindow<kLines> window;
    while (window.open(lines, walk, tile.batch, lane_)) {
      order.first = window.first;
#pragma unroll
      for (int l = 0; l < kLines; ++l) {
        // Lines of one block have one list: they name the same whatever it holds.
        order.named[l] = args_.whole_a ? window.named[0] : window.named[l];
        order.matrix[l] = (args_.whole_a ? window.stored[0] : window.stored[l]) + pool;
        if (window.first < 0) {  // an entry that names no column is stepped over
          order.matrix[l] += static_cast<int>(order.named[l] & 1);
          order.named[l] &= ~1u;
        }
      }
      send(order);
    }
#pragma unroll
    for (unsigned& named : order.named) named = 0;
    order.ends_tile = true;
    send(order);
  }

  /// All lanes hold the same order.
  __device__ void send(const Order<kLines>& order) {
    if (lane_ == 0) {
      tile::wait(&shared_.ordered.empty[at_.stage], at_.parity ^ 1);
      shared_.orders[at_.stage] = order;
      tile::arrive(&shared_.ordered.full[at_.stage]);
    }
    at_.advance();
    __syncwarp();
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int lane_;
  tile::RingCursor<T::kOrders> at_;
};

/// One lane, elected: the compiler has to know that it is one.
template <class T>
class Loader {
 public:
  __device__ Loader(const Arguments& args, typename T::Shared& shared)
      : args_(args), shared_(shared) {
    base_a_ = tile::shared_address(shared.a);
    base_b_ = tile::shared_address(shared.b);
    base_full_ = tile::shared_address(shared.ring.full);
  }

  __device__ void run() {
    tile::RingCursor<T::kOrders> orders;
    while (true) {
      tile::wait(&shared_.ordered.full[orders.stage], orders.parity);
      const Order<kLines> order = shared_.orders[orders.stage];
      tile::arrive(&shared_.ordered.empty[orders.stage]);
      orders.advance();
      if (order.ends_all) break;
      if (args_.walk.sparse) {
        load_blocks(order);
      } else {
        load_depth(order);
      }
      if (order.ends_tile) {
        tile::wait(&shared_.ring.empty[at_.stage], at_.parity ^ 1);
        shared_.notes[at_.stage].place = order.place;
        announce({.what = What::store}, 0);
        at_.advance();
      }
    }
    announce({.what = What::end}, 0);
  }

 private:
  static constexpr int kLines = T::kLines;
  static constexpr unsigned kAllLines = (1u << kLines) - 1;

  __device__ void load_depth(const Order<kLines>& order) {
#pragma unroll 1
    for (int part = 0; part < order.parts; ++part) {
      const int from = part == 0 ? order.skip : 0;
      const int to = part == order.parts - 1 ? order.valid : tile::kLine;
      announce({.consumers = kAllLines,
                .from = static_cast<std::uint8_t>(from),
                .to = static_cast<std::uint8_t>(to)},
               T::kStageBytes);
      const int depth = order.depth + part * tile::kLine;
      copy_a(order, kAllLines, depth, order.matrix);
      copy_b(order, depth);
      at_.advance();
    }
  }

  __device__ void load_blocks(const Order<kLines>& order) {
    const int parts = args_.walk.block_depth / tile::kLine;
    unsigned columns = 0;
#pragma unroll
    for (const unsigned named : order.named) columns |= named;
#pragma unroll 1
    for (; columns != 0; columns &= columns - 1) {
      const unsigned column = columns & (0 - columns);
      unsigned lines = 0;
      int matrix[kLines];
#pragma unroll
      for (int l = 0; l < kLines; ++l) {
        if (order.named[l] & column) lines |= 1u << l;
        matrix[l] = order.matrix[l] + __popc(order.named[l] & (column - 1));
      }
      const int bytes = T::BTile::kBytes + __popc(lines) * T::kLineBytes;
      const int b_depth = (order.first + __popc(column - 1)) * args_.walk.block_depth;
#pragma unroll 1
      for (int part = 0; part < parts; ++part) {
        announce({.consumers = static_cast<std::uint8_t>(lines)}, bytes);
        copy_a(order, lines, part * tile::kLine, matrix);
        copy_b(order, b_depth + part * tile::kLine);
        at_.advance();
      }
    }
  }

  /// Waits for the next stage to be free and says what comes; `bytes` follow.
  __device__ void announce(Task task, int bytes) {
    tile::wait(&shared_.ring.empty[at_.stage], at_.parity ^ 1);
    shared_.notes[at_.stage].task = task;
    tile::arrive_expecting(&shared_.ring.full[at_.stage], static_cast<std::uint32_t>(bytes));
  }

  __device__ std::uint32_t full() const { return base_full_ + at_.stage * sizeof(std::uint64_t); }

  __device__ void copy_a(const Order<kLines>& order, unsigned lines, int depth,
                         const int (&matrix)[kLines]) {
    constexpr bool kDeep = T::kMajorA == Major::k;
    const std::uint32_t to = base_a_ + at_.stage * T::ATile::kBytes;
    if (args_.whole_a) {
      if constexpr (kDeep)
        tile::copy_box(to, args_.a, depth, order.row[0], 0, matrix[0], full());
      else
        tile::copy_box(to, args_.a, 0, depth, order.row[0] / tile::kLine, matrix[0], full());
      return;
    }
#pragma unroll
    for (int l = 0; l < kLines; ++l) {
      if (lines >> l & 1)
        tile::copy_box(to + l * T::kLineBytes, args_.a, kDeep ? depth : order.row[l],
                       kDeep ? order.row[l] : depth, 0, matrix[l], full());
    }
  }

  __device__ void copy_b(const Order<kLines>& order, int depth) {
    const std::uint32_t to = base_b_ + at_.stage * T::BTile::kBytes;
    const int col = order.place.col;
    if constexpr (T::kMajorB == Major::k) {
      tile::copy_box(to, args_.b, depth, col, 0, order.b_matrix, full());
    } else if (args_.whole_b) {
      tile::copy_box(to, args_.b, 0, depth, col / tile::kLine, order.b_matrix, full());
    } else {
#pragma unroll 1
      for (int p = 0; p < T::BTile::kPanels; ++p)
        tile::copy_box(to + p * T::BTile::kPanelBytes, args_.b, col + p * tile::kLine, depth, 0,
                       order.b_matrix, full());
    }
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  std::uint32_t base_a_, base_b_, base_full_;
  tile::RingCursor<T::kStages> at_;
};

}  // namespace tessera::cuda::sm90::matmul
