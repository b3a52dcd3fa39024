#include "src/kernels/cpu/attention_tiles.hpp"

#include <vector>

#include "src/walk/schedule.hpp"

namespace tessera::cpu {

void order_tiles(const AttentionProblem& problem, const planning::AttentionShape& shape,
                 const planning::Tile& tile, std::int64_t* order) {
  if (!order) return;
  const planning::QueryTiling tiling = planning::query_tiling(shape, tile);
  const planning::MaskView mask =
      planning::view_of(problem.mask, shape.kv_length, shape.heads_per_list());
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < tiling.tiles(); ++i) {
    const planning::QueryTile t = tiling.tile(i);
    lengths.push_back(planning::MaskWalk(mask, {}, t.batch, t.head, t.row, t.row).entries());
  }
  const std::vector<std::int64_t> sorted = planning::longest_first(lengths);
  std::copy(sorted.begin(), sorted.end(), order);
}

}  // namespace tessera::cpu
