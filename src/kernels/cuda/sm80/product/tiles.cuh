#pragma once

#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/product/groups.cuh"
#include "src/kernels/cuda/sm80/product/shape.cuh"

namespace tessera::cuda::sm80::product {

/// The tiles of a thread block: blockIdx.x and every gridDim.x-th one after it. With groups, where
/// a tile lies follows from offsets in GPU memory: each warp searches for the tiles by itself and
/// keeps them in shared memory of its own. All lanes of a warp call the functions together.
template <class T>
class Tiles {
 public:
  __device__ __forceinline__ Tiles(const Arguments& args, typename T::Shared& shared)
      : args_(args), shared_(shared) {
    if constexpr (T::kGrouped) {
      if (threadIdx.x % kLanes == 0) found().place = {};
      __syncwarp();
    }
  }

  /// Looks for tile `index`, the next of this thread block, which `exists` and `at` know from then
  /// on. Returns whether it exists.
  __device__ __forceinline__ bool find(int index) const {
    if constexpr (T::kGrouped) {
      if (index >= args_.tiles) return false;
      cuda::product::GroupSearch search;
      search.go_on(found().place);
      const auto tiles_of = [this](int begin, int end) {
        return args_.walk.template tiles_of_group<T::kM, T::kN>(begin, end);
      };
      search.read(args_.groups, tiles_of);
      TileSpan span{0, 0, 0, -1};
      search.find(args_.groups, tiles_of, index, [&](int group, int begin, int end, int within) {
        const auto at = args_.walk.template tile_of_group<T::kM, T::kN>(within, group, begin, end);
        span = {at.line, at.col, end, group};
      });
      __syncwarp();  // all lanes have read the place
      if (threadIdx.x % kLanes == 0) {
        found().tiles[slot(index)] = span;
        found().place = search.place();
        found().batch = span.batch;
      }
      __syncwarp();
    }
    return exists(index);
  }

  __device__ __forceinline__ bool exists(int index) const {
    if constexpr (T::kGrouped) return index < args_.tiles && found().tiles[slot(index)].batch >= 0;
    return index < args_.tiles;
  }

  /// A tile that exists.
  __device__ __forceinline__ TileSpan at(int index) const {
    if constexpr (T::kGrouped) return found().tiles[slot(index)];
    const auto tile = args_.walk.template tile<T::kM, T::kN>(index);
    return {tile.line, tile.col, args_.walk.cols, tile.batch};
  }
  /// With groups: the group of the tile that was found last.
  __device__ __forceinline__ int batch() const { return found().batch; }

 private:
  /// This warp's memory. Its index is read anew, so that no register holds it.
  __device__ __forceinline__ auto& found() const {
    return shared_.found[thread_of_block() / kLanes];
  }
  __device__ __forceinline__ static int slot(int index) {
    return static_cast<int>(static_cast<unsigned>(index) / gridDim.x %
                            FoundTiles<T::kStages>::kTiles);
  }

  const Arguments& args_;
  typename T::Shared& shared_;
};

}  // namespace tessera::cuda::sm80::product
