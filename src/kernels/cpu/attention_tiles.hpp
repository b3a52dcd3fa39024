#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "src/kernels/cpu/attention_stage.hpp"
#include "src/kernels/cpu/attention_view.hpp"
#include "src/kernels/cpu/layout.hpp"
#include "src/walk/views.hpp"

namespace tessera::cpu {

/// Lanes hold 32-bit positions; a larger bound means "no bound".
inline std::int32_t lane_bound(std::int64_t key) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(key, 0, kMax));
}

/// The walks of one attention problem, masked or not.
class AttentionTiles {
 public:
  AttentionTiles(const AttentionProblem& problem, const planning::AttentionShape& shape)
      : bits_(problem.mask) {
    if (shape.masked)
      mask_ = planning::view_of(problem.mask, shape.kv_length, shape.heads_per_list());
  }

  /// The `bits` argument of `hide_scores` if lanes, from `first` on, are the queries of a tile.
  auto bits_of_queries(const planning::QueryTile& tile, std::int64_t first) const {
    return [this, &tile, first](const planning::KeyStep& step, std::int64_t lane) {
      const std::int64_t query = (tile.row + (first + lane) % tile.row_count) % mask_->block_q;
      return [this, &step, query](std::int64_t key) {
        return bits_.seen(step.bit_tile, query, key - step.block_begin);
      };
    };
  }
  /// The same if lanes are keys, from `first` on, and rows are queries.
  auto bits_of_keys(std::int64_t first) const {
    return [this, first](const planning::KeyStep& step, std::int64_t lane) {
      const std::int64_t key = (first + lane) % mask_->block_kv;
      return [this, &step, key](std::int64_t query) {
        return bits_.seen(step.bit_tile, query - step.block_begin, key);
      };
    };
  }

  /// Collects the steps that rows [first, last] of a head need; these rows lie in one row of mask
  /// blocks.
  void walk_keys(const Sequence& sequence, std::int64_t head, std::int64_t first, std::int64_t last,
                 Stages& stages) const {
    stages.clear();
    planning::KeyStep step;
    if (mask_) {
      planning::MaskWalk walk(*mask_, sequence.sight, sequence.batch, head, first, last);
      while (walk.next(step)) stages.add(step);
      return;
    }
    const planning::RangeWalk walk{sequence.sight, first, last, stages.size()};
    for (std::int64_t i = 0; i < walk.steps(); ++i)
      if (step = walk.step(i); step.count > 0) stages.add(step);
  }

 private:
  BitTiles bits_;
  std::optional<planning::MaskView> mask_;
};

/// Orders the query tiles by falling length of their lists; without a mask, does nothing.
void order_tiles(const AttentionProblem& problem, const planning::AttentionShape& shape,
                 const planning::Tile& tile, std::int64_t* order);

}  // namespace tessera::cpu
