#include "src/kernels/cuda/attention/walk.hpp"

#include <algorithm>

#include "src/walk/views.hpp"

namespace tessera::planning {

AttentionScratch carve_attention_scratch(core::Carver& carver, const Tile& tile,
                                         const AttentionLayout& layout, int state) {
  AttentionScratch scratch;
  const int consumers = tile.m / 64;  // 64 rows per consumer
  // Static tiles need no counter, so small problems need no workspace.
  if (layout.dynamic()) scratch.next_tile = carver.add<std::uint64_t>(1);
  if (layout.dynamic() && layout.ordered) {
    scratch.order = carver.add<int>(2 * layout.tiles);
    scratch.grids_seen = carver.add<std::uint64_t>(1);
  }
  if (layout.split_ctas > 0) {
    scratch.merge_counts = carver.add<std::uint64_t>(layout.split_tiles() * consumers);
    const core::Size parts = core::Size(layout.split_ctas + layout.split_tiles()) * consumers;
    scratch.partials = carver.add<float>(parts * 128 * (tile.v / 2 + state));
  }
  if (layout.composed) scratch.composed = carve_composed(carver, layout.composed);
  return scratch;
}

AttentionWalk attention_walk(const AttentionProblem& problem, const AttentionShape& shape,
                             const AttentionLayout& layout, const Tile& tile) {
  AttentionWalk walk;
  walk.sequences = sequences_of(problem, shape);
  if (shape.masked) {
    walk.mask = view_of(problem.mask, shape.kv_length, shape.heads_per_list());
    if (problem.mask.bit_tile) {
      walk.bits_tile = problem.mask.bits.stride(0);
      walk.bits_row = problem.mask.bits.stride(1);
      walk.bits_byte = problem.mask.bits.stride(2);
    }
  }
  walk.batches = static_cast<int>(shape.batch);
  walk.head_groups = Divisor::of(static_cast<int>(layout.head_groups));
  walk.pack = SmallDivisor::of(layout.pack);
  walk.group = Divisor::of(static_cast<int>(shape.heads / shape.kv_heads));
  walk.queries = static_cast<int>(layout.queries);
  walk.blocks = static_cast<int>(layout.blocks());
  walk.tiles_per_head = static_cast<int>(layout.tiles_per_head);
  walk.tiles = static_cast<int>(layout.tiles);
  walk.whole = static_cast<int>(layout.whole);
  walk.split_ctas = static_cast<int>(layout.split_ctas);
  const auto section = static_cast<int>(
      std::min(layout.section, std::max<std::int64_t>(shape.batch * layout.head_groups, 1)));
  walk.section = Divisor::of(section);
  walk.tiles_per_section = Divisor::of(std::max(section * walk.tiles_per_head, 1));
  walk.step_pieces = tile.n / kKeyPiece * tile.kv_splits;
  walk.row_groups = layout.row_groups;
  walk.packed_q = shape.q_packed;
  walk.longest_last = shape.window_right >= 0;
  walk.reverses_odd_rounds = shape.masked && walk.row_groups == 1 && !walk.longest_last;
  walk.reads_sequences = walk.sequences.lie_in_memory();
  walk.reads_for_steps = shape.masked || shape.kv_scales_by_rows;
  if (!walk.reads_sequences) walk.uniform_sequence = SequenceDescriptor::of(walk.sequences.at(0));
  return walk;
}

MaskComposer composer_of(const AttentionProblem& problem, const AttentionShape& shape,
                         const ComposedMask& to, const ComposedLists& lists) {
  MaskComposer composer;
  composer.given = view_of(problem.mask, shape.kv_length, shape.heads_per_list());
  if (const Tensor& bits = problem.mask.bits)
    composer.bits = {static_cast<const std::uint8_t*>(bits.data), bits.stride(0), bits.stride(1),
                     bits.stride(2)};
  composer.q_length = shape.q_length;
  composer.kv_length = shape.kv_length;
  composer.to = to;
  composer.lists = lists;
  return composer;
}

void walk_composed(AttentionWalk& walk, const ComposedMask& to, const ComposedLists& lists) {
  constexpr int kWord = sizeof(std::uint64_t);
  walk.mask = view_of(to, lists);
  walk.bits_tile = to.block_words() * kWord;
  walk.bits_row = kWord;
  walk.bits_byte = 1;
  walk.composed = lists.bits;
  walk.words = static_cast<int>(to.words);
  walk.word_queries = SmallDivisor::of(static_cast<int>(to.word_queries()));
}

}  // namespace tessera::planning
