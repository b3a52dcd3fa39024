#include <algorithm>
#include <cmath>
#include <vector>

#include "src/kernels/cpu/attention_stage.hpp"
#include "src/kernels/cpu/attention_tiles.hpp"
#include "src/kernels/cpu/backend.hpp"
#include "src/kernels/cpu/parallel.hpp"
#include "src/walk/views.hpp"

// Backward in two passes, each shaped like the forward loop: with queries in lanes, walk keys and
// sum dq; with keys in lanes, walk queries (transposed lists) and sum dk and dv. Scores are
// computed twice, but threads share nothing, and results do not depend on the number of threads.
namespace tessera::cpu {
namespace {

/// delta = dout . out - dlse of every query: [heads, rows in memory].
struct DeltaTable {
  float* data;
  std::int64_t rows;
  std::int64_t q_length;
  bool packed;

  float* of(const Sequence& sequence, std::int64_t head) const {
    const std::int64_t first = packed ? sequence.q_begin : sequence.batch * q_length;
    return data + head * rows + first;
  }
};

class Backward {
 public:
  Backward(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
           const Resources& resources)
      : isa_(simd()),
        problem_(problem),
        forward_(problem.forward),
        shape_(shape),
        tile_(resources.row.tile),
        view_(problem.forward, shape),
        tiles_(problem.forward, shape) {
    map_ = {shape.scale, shape.softcap};
    core::Carver buffers(resources.schedule);
    schedule_ = planning::carve_attention_schedule(buffers, shape, tile_, true);
    core::Carver carver(resources.workspace);
    delta_ = {carver.add<float>(shape.heads * shape.q_total), shape.q_total, shape.q_length,
              shape.q_packed};
    threads_.resize(static_cast<std::size_t>(resources.threads),
                    Thread{.stages = Stages(resources.row.tile.n)});
    for (Thread& thread : threads_)
      thread.scratch = planning::carve_attention_scratch(carver, shape, tile_, true);
  }

  const planning::AttentionSchedule& schedule() const { return schedule_; }

  void compute_delta(int index, std::int64_t batch, std::int64_t head) {
    planning::AttentionScratch& s = threads_[static_cast<std::size_t>(index)].scratch;
    const Sequence sequence = view_.sequence(batch);
    const RowsView out = view_.queries(forward_.out, sequence, head);
    const RowsView dout = view_.queries(problem_.dout, sequence, head);
    const AttentionView::PerQuery dlse = view_.per_query(problem_.dlse, sequence, head);
    float* delta = delta_.of(sequence, head);
    for (std::int64_t i = 0; i < sequence.q_length; ++i) {
      isa_.load(out.at(i), out.dtype, out.col, shape_.dim_v, s.row);
      isa_.load(dout.at(i), dout.dtype, dout.col, shape_.dim_v, s.dout);
      double sum = 0;
      for (std::int64_t d = 0; d < shape_.dim_v; ++d)
        sum += static_cast<double>(s.row[d]) * static_cast<double>(s.dout[d]);
      if (dlse.data) sum -= static_cast<double>(dlse[i]);
      delta[i] = static_cast<float>(sum);
    }
  }

  /// The sink takes part in every query's softmax but has no value: d = -p * delta.
  void compute_sink(std::int64_t head) {
    const float sink = view_.sink(head);
    double sum = 0;
    for (std::int64_t batch = 0; batch < shape_.batch; ++batch) {
      const Sequence sequence = view_.sequence(batch);
      const AttentionView::PerQuery lse = view_.per_query(forward_.lse, sequence, head);
      const float* delta = delta_.of(sequence, head);
      for (std::int64_t i = 0; i < sequence.q_length; ++i)
        if (lse[i] != kHidden)
          sum -= std::exp(static_cast<double>(sink) - static_cast<double>(lse[i])) *
                 static_cast<double>(delta[i]);
    }
    const Tensor& to = problem_.dsinks;
    static_cast<float*>(to.data)[head * to.stride(0)] = static_cast<float>(sum);
  }

  void run_queries(int index, const planning::QueryTile& planned) {
    Thread& t = threads_[static_cast<std::size_t>(index)];
    planning::AttentionScratch& s = t.scratch;
    const Sequence sequence = view_.sequence(planned.batch);
    planning::QueryTile tile = planned;
    tile.row_count = std::min(tile.row_count, sequence.q_length - tile.row);
    if (tile.row_count <= 0) return;
    const Strips strips(tile.head_count * tile.row_count, isa_);
    const std::int64_t lanes = static_cast<std::int64_t>(strips.vectors) * isa_.lanes;
    begin_lanes(s, lanes);
    for (std::int64_t h = 0; h < tile.head_count; ++h) {
      const std::int64_t head = tile.head + h, lane = h * tile.row_count;
      load_lanes(isa_, view_.queries(forward_.q, sequence, head), tile.row, tile.row_count,
                 shape_.dim, lane, strips, s.q, s.row);
      load_lanes(isa_, view_.queries(problem_.dout, sequence, head), tile.row, tile.row_count,
                 shape_.dim_v, lane, strips, s.dout, s.row);
      const AttentionView::PerQuery lse = view_.per_query(forward_.lse, sequence, head);
      for (std::int64_t i = 0; i < tile.row_count; ++i) {
        const planning::KeyRange seen = sequence.sight.of_row(tile.row + i);
        s.lo[lane + i] = lane_bound(seen.begin);
        s.hi[lane + i] = lane_bound(seen.end);
        s.maximum[lane + i] = lse[tile.row + i];
        s.delta[lane + i] = delta_.of(sequence, head)[tile.row + i];
      }
    }
    const std::int64_t kv_head = tile.head / (shape_.heads / shape_.kv_heads);
    const KeyRowsView keys = view_.keys(forward_.k, sequence, kv_head);
    const KeyRowsView values = view_.keys(forward_.v, sequence, kv_head);
    tiles_.walk_keys(sequence, tile.head, tile.row, tile.row + tile.row_count - 1, t.stages);
    while (t.stages.next(t.stage)) {
      t.rows.load(isa_, keys, t.stage, shape_.dim, s.keys);
      t.value_rows.load(isa_, values, t.stage, shape_.dim_v, s.values);
      for (int i = 0; i < strips.count; ++i) {
        const Part part = part_of(strips, i);
        score(t, part, tile.head_count * tile.row_count, tiles_.bits_of_queries(tile, part.first));
        isa_.backward(s.scores, s.dscores, part.width, stage_rows(t.stage), part.vectors, map_,
                      s.maximum + part.first, s.delta + part.first, true);
        t.rows.transposed_times(isa_, s.dscores, shape_.dim, part.vectors,
                                s.dq + part.first * shape_.dim, t.segments);
      }
    }
    for (std::int64_t h = 0; h < tile.head_count; ++h)
      store_lanes(isa_, s.dq, strips, h * tile.row_count, tile.row_count, shape_.dim, nullptr,
                  view_.queries(problem_.dq, sequence, tile.head + h), tile.row, s.row);
  }

  void run_keys(int index, std::int64_t batch, std::int64_t kv_head, std::int64_t first_key,
                std::int64_t key_count) {
    Thread& t = threads_[static_cast<std::size_t>(index)];
    planning::AttentionScratch& s = t.scratch;
    const Sequence sequence = view_.sequence(batch);
    key_count = std::min(key_count, sequence.kv_length - first_key);
    if (key_count <= 0) return;
    const Strips strips(key_count, isa_);
    const std::int64_t lanes = static_cast<std::int64_t>(strips.vectors) * isa_.lanes;
    begin_lanes(s, lanes);
    const planning::KeyRange used =
        planning::intersect(sequence.sight.used, {first_key, first_key + key_count});
    if (!used.empty()) {
      const std::int64_t lane = used.begin - first_key;
      load_lanes(isa_, view_.keys(forward_.k, sequence, kv_head).rows, used.begin, used.size(),
                 shape_.dim, lane, strips, s.q, s.row);
      load_lanes(isa_, view_.keys(forward_.v, sequence, kv_head).rows, used.begin, used.size(),
                 shape_.dim_v, lane, strips, s.dout, s.row);
      const planning::Visibility sight = sequence.sight.from_keys(sequence.q_length);
      for (std::int64_t key = used.begin; key < used.end; ++key) {
        const planning::KeyRange seen = sight.of_row(key);
        s.lo[key - first_key] = lane_bound(seen.begin);
        s.hi[key - first_key] = lane_bound(seen.end);
      }
      const std::int64_t group = shape_.heads / shape_.kv_heads;
      for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head)
        add_head(t, sequence, head, first_key, key_count, used, strips);
    }
    if (problem_.dk)
      store_lanes(isa_, s.dq, strips, 0, key_count, shape_.dim, nullptr,
                  view_.keys(problem_.dk, sequence, kv_head).rows, first_key, s.row);
    if (problem_.dv)
      store_lanes(isa_, s.out, strips, 0, key_count, shape_.dim_v, nullptr,
                  view_.keys(problem_.dv, sequence, kv_head).rows, first_key, s.row);
  }

 private:
  struct Thread {
    planning::AttentionScratch scratch{};
    Stages stages;
    std::vector<planning::KeyStep> stage{};
    StageRows rows{}, value_rows{};  // rows that the lanes walk: k and v, or q and dout
    std::vector<Segment> segments{};
    std::vector<float> lse{}, delta{};  // per query of a stage
  };

  struct Part {
    std::int64_t first, width;
    int vectors;
  };
  Part part_of(const Strips& strips, int i) const {
    return {static_cast<std::int64_t>(strips.first(i)) * isa_.lanes,
            static_cast<std::int64_t>(strips.width(i)) * isa_.lanes, strips.width(i)};
  }

  void begin_lanes(planning::AttentionScratch& s, std::int64_t lanes) const {
    for (float* lane_rows : {s.q, s.dq}) std::fill(lane_rows, lane_rows + lanes * shape_.dim, 0.0f);
    for (float* lane_rows : {s.dout, s.out})
      std::fill(lane_rows, lane_rows + lanes * shape_.dim_v, 0.0f);
    std::fill(s.lo, s.lo + lanes, 0);
    std::fill(s.hi, s.hi + lanes, 0);
    std::fill(s.maximum, s.maximum + lanes, 0.0f);
    std::fill(s.delta, s.delta + lanes, 0.0f);
  }

  /// Computes scores and dscores of a strip, and marks hidden pairs; `bits` as for `hide_scores`.
  template <class Bits>
  void score(Thread& t, const Part& part, std::int64_t lanes_in_use, const Bits& bits) {
    planning::AttentionScratch& s = t.scratch;
    t.rows.times(isa_, s.q + part.first * shape_.dim, shape_.dim, part.vectors, s.scores);
    t.value_rows.times(isa_, s.dout + part.first * shape_.dim_v, shape_.dim_v, part.vectors,
                       s.dscores);
    hide_scores(isa_, t.stage, {s.lo + part.first, s.hi + part.first}, part.vectors,
                lanes_in_use - part.first, s.scores, bits);
  }

  /// Adds the contribution of one head's queries to a tile of keys.
  void add_head(Thread& t, const Sequence& sequence, std::int64_t head, std::int64_t first_key,
                std::int64_t key_count, const planning::KeyRange& used, const Strips& strips) {
    planning::AttentionScratch& s = t.scratch;
    walk_queries(sequence, head, used, first_key, key_count, t.stages);
    const AttentionView::PerQuery lse = view_.per_query(forward_.lse, sequence, head);
    const float* delta = delta_.of(sequence, head);
    KeyRowsView queries, gradients;
    queries.rows = view_.queries(forward_.q, sequence, head);
    gradients.rows = view_.queries(problem_.dout, sequence, head);
    while (t.stages.next(t.stage)) {
      t.rows.load(isa_, queries, t.stage, shape_.dim, s.keys);
      t.value_rows.load(isa_, gradients, t.stage, shape_.dim_v, s.values);
      t.lse.clear();
      t.delta.clear();
      for (const planning::KeyStep& step : t.stage)
        for (std::int64_t i = step.begin; i < step.begin + step.count; ++i) {
          t.lse.push_back(lse[i]);
          t.delta.push_back(delta[i]);
        }
      for (int i = 0; i < strips.count; ++i) {
        const Part part = part_of(strips, i);
        score(t, part, key_count, tiles_.bits_of_keys(first_key + part.first));
        isa_.backward(s.scores, s.dscores, part.width, stage_rows(t.stage), part.vectors, map_,
                      t.lse.data(), t.delta.data(), false);
        t.rows.transposed_times(isa_, s.dscores, shape_.dim, part.vectors,
                                s.dq + part.first * shape_.dim, t.segments);
        t.value_rows.transposed_times(isa_, s.scores, shape_.dim_v, part.vectors,
                                      s.out + part.first * shape_.dim_v, t.segments);
      }
    }
  }

  /// Collects the steps over the queries that see any of the tile's keys.
  void walk_queries(const Sequence& sequence, std::int64_t head, const planning::KeyRange& used,
                    std::int64_t first_key, std::int64_t key_count, Stages& stages) const {
    stages.clear();
    const planning::Visibility sight = sequence.sight.from_keys(sequence.q_length);
    const std::int64_t first = used.begin, last = used.end - 1;
    // Lanes of unused keys see no query, so every step is a boundary step.
    const bool ragged = used.size() < key_count;
    const auto add = [&](planning::KeyStep step) {
      step.boundary |= ragged;
      if (step.count > 0) stages.add(step);
    };
    if (!shape_.masked) {
      const planning::RangeWalk walk{sight, first, last, stages.size()};
      for (std::int64_t i = 0; i < walk.steps(); ++i) add(walk.step(i));
      return;
    }
    const std::int64_t set = schedule_.set(shape_, sequence.batch, head);
    const std::int64_t* offsets = schedule_.offsets + set * (schedule_.key_blocks + 1);
    const std::int64_t block = first_key / shape_.mask_block.cols;
    for (std::int64_t e = offsets[block]; e < offsets[block + 1]; ++e) {
      const std::int64_t begin =
          schedule_.rows[set * schedule_.entries + e] * shape_.mask_block.rows;
      planning::KeyStep step =
          planning::clip_step(sight, first, last, {begin, begin + shape_.mask_block.rows});
      step.bit_tile = schedule_.tiles[set * schedule_.entries + e];
      add(step);
    }
  }

  const Simd& isa_;
  const AttentionBackwardProblem& problem_;
  const AttentionProblem& forward_;
  const planning::AttentionShape& shape_;
  planning::Tile tile_;
  AttentionView view_;
  AttentionTiles tiles_;
  ScoreMap map_{};
  planning::AttentionSchedule schedule_;
  DeltaTable delta_{};
  std::vector<Thread> threads_;
};

}  // namespace

void run(const AttentionBackwardProblem& problem, const planning::AttentionBackwardShape& shape,
         const Resources& resources) {
  const int threads = resources.threads;
  if (is_empty(problem.dq) && is_empty(problem.dk) && is_empty(problem.dv) &&
      is_empty(problem.dsinks))
    return;
  Backward backward(problem, shape, resources);
  const AttentionView view(problem.forward, shape);
  view.clear_rest(problem.dq, problem.forward.q_offsets);
  view.clear_rest(problem.dk, problem.forward.kv_offsets);
  view.clear_rest(problem.dv, problem.forward.kv_offsets);
  parallel_for(threads, shape.batch * shape.heads, [&](int thread, std::int64_t i) {
    backward.compute_delta(thread, i / shape.heads, i % shape.heads);
  });
  if (problem.dsinks)
    parallel_for(threads, shape.heads,
                 [&](int, std::int64_t head) { backward.compute_sink(head); });
  if (problem.dq) {
    const planning::QueryTiling tiling = planning::query_tiling(shape, resources.row.tile);
    const std::int64_t* order = backward.schedule().order;
    parallel_for(threads, tiling.tiles(), [&](int thread, std::int64_t i) {
      backward.run_queries(thread, tiling.tile(order ? order[i] : tiling.tiles() - 1 - i));
    });
  }
  if (problem.dk || problem.dv) {
    const planning::KeyTiling tiling = planning::key_tiling(shape, resources.row.tile);
    const std::int64_t units = shape.batch * shape.kv_heads;
    parallel_for(threads, units * tiling.key_tiles, [&](int thread, std::int64_t i) {
      const std::int64_t unit = i / tiling.key_tiles;
      backward.run_keys(thread, unit / shape.kv_heads, unit % shape.kv_heads,
                        i % tiling.key_tiles * tiling.keys_per_tile, tiling.keys_per_tile);
    });
  }
}

void prepare(const AttentionBackwardProblem& problem, const planning::AttentionShape& shape,
             const planning::KernelRow& row, void* schedule) {
  core::Carver carver(schedule);
  const planning::AttentionSchedule lists =
      planning::carve_attention_schedule(carver, shape, row.tile, true);
  order_tiles(problem.forward, shape, row.tile, lists.order);
  if (!lists.offsets) return;
  const planning::MaskView mask =
      planning::view_of(problem.forward.mask, shape.kv_length, shape.heads_per_list());
  for (std::int64_t batch = 0; batch < shape.mask_batch; ++batch)
    for (std::int64_t in_batch = 0; in_batch < shape.mask_heads; ++in_batch) {
      const std::int64_t set = batch * shape.mask_heads + in_batch;
      const std::int64_t head = in_batch * shape.heads_per_list();  // first of those that share
      std::int64_t* offsets = lists.offsets + set * (lists.key_blocks + 1);
      std::int64_t* rows = lists.rows + set * lists.entries;
      std::int64_t* tiles = lists.tiles + set * lists.entries;
      // Calls visit(row, key block, bit tile) once per entry of every row.
      const auto for_each_entry = [&](const auto& visit) {
        const planning::Visibility all{.used = {0, shape.kv_length}};
        for (std::int64_t r = 0; r < shape.mask_rows; ++r) {
          const std::int64_t query = r * shape.mask_block.rows;
          planning::MaskWalk walk(mask, all, batch, head, query, query);
          planning::KeyStep step;
          // Rows that no query uses were not checked: their entries may repeat, but must not
          // overflow the buffers.
          for (std::int64_t n = 0; n < shape.mask_capacity && walk.next(step); ++n)
            visit(r, step.block_begin / shape.mask_block.cols, step.bit_tile);
        }
      };
      std::fill(offsets, offsets + lists.key_blocks + 1, 0);
      for_each_entry([&](std::int64_t, std::int64_t block, std::int64_t) { ++offsets[block + 1]; });
      for (std::int64_t j = 0; j < lists.key_blocks; ++j) offsets[j + 1] += offsets[j];
      for_each_entry([&](std::int64_t r, std::int64_t block, std::int64_t bit_tile) {
        const std::int64_t slot = offsets[block]++;
        rows[slot] = r;
        tiles[slot] = bit_tile;
      });
      for (std::int64_t j = lists.key_blocks; j > 0; --j) offsets[j] = offsets[j - 1];
      offsets[0] = 0;
    }
}

}  // namespace tessera::cpu
