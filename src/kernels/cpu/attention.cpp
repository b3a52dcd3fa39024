#include <algorithm>
#include <cmath>
#include <vector>

#include "src/kernels/cpu/attention_stage.hpp"
#include "src/kernels/cpu/attention_tiles.hpp"
#include "src/kernels/cpu/backend.hpp"
#include "src/kernels/cpu/parallel.hpp"
#include "src/walk/views.hpp"

// Queries are in vector lanes: scores are computed as K Q^T, so that K and V are read in place, by
// broadcast, and the softmax over keys needs no sums across lanes.
namespace tessera::cpu {
namespace {

class Forward {
 public:
  Forward(const AttentionProblem& problem, const planning::AttentionShape& shape,
          const Resources& resources)
      : isa_(simd()),
        problem_(problem),
        shape_(shape),
        view_(problem, shape),
        tiles_(problem, shape) {
    map_ = {shape.scale, shape.softcap};
    core::Carver carver(resources.workspace);
    threads_.resize(static_cast<std::size_t>(resources.threads),
                    Thread{.stages = Stages(resources.row.tile.n)});
    for (Thread& thread : threads_)
      thread.scratch = planning::carve_attention_scratch(carver, shape, resources.row.tile, false);
  }

  void run_tile(int index, const planning::QueryTile& planned) {
    Thread& t = threads_[static_cast<std::size_t>(index)];
    const Sequence sequence = view_.sequence(planned.batch);
    planning::QueryTile tile = planned;
    tile.row_count = std::min(tile.row_count, sequence.q_length - tile.row);
    if (tile.row_count <= 0) return;
    const Strips strips(tile.head_count * tile.row_count, isa_);
    begin_tile(t, tile, sequence, strips);
    const std::int64_t kv_head = tile.head / (shape_.heads / shape_.kv_heads);
    const KeyRowsView keys = view_.keys(problem_.k, sequence, kv_head, problem_.k_scale);
    const KeyRowsView values = view_.keys(problem_.v, sequence, kv_head, problem_.v_scale);
    tiles_.walk_keys(sequence, tile.head, tile.row, tile.row + tile.row_count - 1, t.stages);
    while (t.stages.next(t.stage)) run_stage(t, tile, strips, keys, values);
    end_tile(t, tile, sequence, strips);
  }

 private:
  struct Thread {
    planning::AttentionScratch scratch{};
    Stages stages;
    std::vector<planning::KeyStep> stage{};
    StageRows keys{}, values{};
    std::vector<Segment> segments{};
  };

  void begin_tile(Thread& t, const planning::QueryTile& tile, const Sequence& sequence,
                  const Strips& strips) {
    const std::int64_t lanes = static_cast<std::int64_t>(strips.vectors) * isa_.lanes;
    planning::AttentionScratch& s = t.scratch;
    std::fill(s.q, s.q + lanes * shape_.dim, 0.0f);
    std::fill(s.out, s.out + lanes * shape_.dim_v, 0.0f);
    std::fill(s.maximum, s.maximum + lanes, kHidden);
    std::fill(s.sum, s.sum + lanes, 0.0f);
    std::fill(s.lo, s.lo + lanes, 0);
    std::fill(s.hi, s.hi + lanes, 0);
    for (std::int64_t h = 0; h < tile.head_count; ++h) {
      load_lanes(isa_, view_.queries(problem_.q, sequence, tile.head + h, problem_.q_scale),
                 tile.row, tile.row_count, shape_.dim, h * tile.row_count, strips, s.q, s.row);
      for (std::int64_t i = 0; i < tile.row_count; ++i) {
        const planning::KeyRange seen = sequence.sight.of_row(tile.row + i);
        s.lo[h * tile.row_count + i] = lane_bound(seen.begin);
        s.hi[h * tile.row_count + i] = lane_bound(seen.end);
      }
    }
  }

  void run_stage(Thread& t, const planning::QueryTile& tile, const Strips& strips,
                 const KeyRowsView& keys, const KeyRowsView& values) {
    planning::AttentionScratch& s = t.scratch;
    t.keys.load(isa_, keys, t.stage, shape_.dim, s.keys);
    t.values.load(isa_, values, t.stage, shape_.dim_v, s.values);
    const int count = stage_rows(t.stage);
    for (int i = 0; i < strips.count; ++i) {
      const int vectors = strips.width(i);
      const std::int64_t first = static_cast<std::int64_t>(strips.first(i)) * isa_.lanes;
      const std::int64_t width = static_cast<std::int64_t>(vectors) * isa_.lanes;
      t.keys.times(isa_, s.q + first * shape_.dim, shape_.dim, vectors, s.scores);
      hide_scores(isa_, t.stage, {s.lo + first, s.hi + first}, vectors,
                  tile.head_count * tile.row_count - first, s.scores,
                  tiles_.bits_of_queries(tile, first));
      isa_.softmax(s.scores, width, count, vectors, map_, s.maximum + first, s.sum + first,
                   s.shrink + first);
      float* out = s.out + first * shape_.dim_v;
      isa_.scale_lanes(out, width, static_cast<int>(shape_.dim_v), vectors, s.shrink + first);
      t.values.transposed_times(isa_, s.scores, shape_.dim_v, vectors, out, t.segments);
    }
  }

  void end_tile(Thread& t, const planning::QueryTile& tile, const Sequence& sequence,
                const Strips& strips) {
    planning::AttentionScratch& s = t.scratch;
    for (std::int64_t h = 0; h < tile.head_count; ++h) {
      const std::int64_t head = tile.head + h;
      const AttentionView::PerQuery lse = view_.per_query(problem_.lse, sequence, head);
      const float sink = shape_.has_sinks ? view_.sink(head) : kHidden;
      const std::int64_t lane = h * tile.row_count;
      for (std::int64_t i = 0; i < tile.row_count; ++i) {
        const float value = finish_lane(s.maximum[lane + i], s.sum[lane + i], sink);
        if (lse.data) lse[tile.row + i] = value;
      }
      store_lanes(isa_, s.out, strips, lane, tile.row_count, shape_.dim_v, s.sum,
                  view_.queries(problem_.out, sequence, head), tile.row, s.row);
    }
  }

  /// Turns a lane's row sum into the factor that normalises its output, and returns its
  /// log-sum-exp.
  static float finish_lane(float maximum, float& sum, float sink) {
    const float top = std::max(maximum, sink);
    if (top == kHidden && sum == 0.0f) return kHidden;
    const float shrink = maximum == kHidden ? 0.0f : std::exp(maximum - top);
    const float total = sum * shrink + (sink == kHidden ? 0.0f : std::exp(sink - top));
    sum = shrink / total;
    return top + std::log(total);
  }

  const Simd& isa_;
  const AttentionProblem& problem_;
  const planning::AttentionShape& shape_;
  AttentionView view_;
  AttentionTiles tiles_;
  ScoreMap map_{};
  std::vector<Thread> threads_;
};

}  // namespace

void run(const AttentionProblem& problem, const planning::AttentionShape& shape,
         const Resources& resources) {
  if (is_empty(problem.out) && is_empty(problem.lse)) return;
  const AttentionView view(problem, shape);
  view.clear_rest(problem.out, problem.q_offsets);
  view.clear_rest_of_lse();
  const planning::QueryTiling tiling = planning::query_tiling(shape, resources.row.tile);
  core::Carver carver(resources.schedule);
  const std::int64_t* order =
      planning::carve_attention_schedule(carver, shape, resources.row.tile, false).order;
  Forward forward(problem, shape, resources);
  parallel_for(resources.threads, tiling.tiles(), [&](int thread, std::int64_t i) {
    // Without a mask, the last tiles of a head are the longest, if any.
    const std::int64_t index = order ? order[i] : tiling.tiles() - 1 - i;
    forward.run_tile(thread, tiling.tile(index));
  });
}

void prepare(const AttentionProblem& problem, const planning::AttentionShape& shape,
             const planning::KernelRow& row, void* schedule) {
  core::Carver carver(schedule);
  order_tiles(problem, shape, row.tile,
              planning::carve_attention_schedule(carver, shape, row.tile, false).order);
}

}  // namespace tessera::cpu
