// Composed masks have the same pairs as the given masks, whatever the block size.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "src/walk/compose_mask.hpp"
#include "src/walk/sequence.hpp"
#include "src/walk/views.hpp"
#include "tests/support/generate.hpp"
#include "tests/unit/compose_rows.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

/// A problem's mask composed into blocks of `queries` queries, `width` columns at a time.
struct Composed {
  ComposedMask mask;
  std::vector<std::uint64_t> memory;
  ComposedLists lists;
  MaskView view;

  Composed(const AttentionProblem& problem, std::int64_t queries, std::int64_t width) {
    const AttentionShape shape = shape_of(problem);
    mask = compose(shape, queries);
    core::Carver sizes;
    carve_composed(sizes, mask);
    EXPECT_LE(static_cast<double>(sizes.used()), composed_bytes(mask) + 6 * 128);
    memory.assign(static_cast<std::size_t>(sizes.used() / 8), 0xababababababababu);
    core::Carver carver(memory.data());
    lists = carve_composed(carver, mask);
    view = view_of(mask, lists);
    MaskComposer composer{.given = view_of(problem.mask, shape.kv_length),
                          .bits = {},
                          .q_length = shape.q_length,
                          .kv_length = shape.kv_length,
                          .to = mask,
                          .lists = lists};
    if (const Tensor& bits = problem.mask.bits)
      composer.bits = {static_cast<const std::uint8_t*>(bits.data), bits.stride(0), bits.stride(1),
                       bits.stride(2)};
    tessera::testing::compose_rows(composer, width);
  }

  /// How often the walk visits each key for one query, in blocks that show the key to the query.
  std::vector<int> seen(std::int64_t batch, std::int64_t head, std::int64_t query,
                        std::int64_t keys) const {
    std::vector<int> found(static_cast<std::size_t>(keys));
    MaskWalk walk(view, {.used = {0, keys}}, batch, head, query, query);
    KeyStep step;
    while (walk.next(step))
      for (std::int64_t key = step.begin; key < step.begin + step.count; ++key) {
        std::uint64_t word = ~std::uint64_t{0};
        if (step.bit_tile >= 0)
          word = lists.bits[step.bit_tile * mask.block_words() +
                            query % mask.queries / mask.word_queries()];
        found[static_cast<std::size_t>(key)] += word >> (key - step.block_begin) & 1;
      }
    return found;
  }
};

constexpr std::int64_t kQueries[] = {16, 48, 64, 128, 192, 256};

generate::AttentionOptions lists_alone() {
  generate::AttentionOptions options;
  options.mask = generate::Presence::always;
  options.positions = options.paged = options.packed_q = options.packed_kv =
      generate::Presence::never;
  options.largest_batch = options.largest_kv_heads = 2;
  options.dims.assign(1, 1);
  options.longest = 270;
  options.max_queries = 150;
  return options;
}

TEST(ComposeMask, KeepsEveryPairAndNoOther) {
  int pairs = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const auto c = generate::attention_case(seed, lists_alone());
    const AttentionProblem& p = c->problem;
    const AttentionShape shape = shape_of(p);
    const Composed composed(p, kQueries[seed % 6], seed % 4 == 0 ? 2 : 100);
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t h = 0; h < shape.heads; ++h)
        for (std::int64_t i = 0; i < shape.q_length; ++i) {
          const std::vector<int> seen = composed.seen(b, h, i, shape.kv_length);
          for (std::int64_t j = 0; j < shape.kv_length; ++j) {
            const int expected = oracle::visible(p, b, h, i, j) ? 1 : 0;
            ASSERT_EQ(seen[static_cast<std::size_t>(j)], expected)
                << c->text << " blocks " << p.mask.block_q << " x " << p.mask.block_kv
                << " composed by " << kQueries[seed % 6] << ": pair " << i << ", " << j;
            pairs += expected;
          }
        }
  }
  EXPECT_GT(pairs, 100000);
}

/// `met` has the keys of a composed block that some query sees, by the lists and by position.
TEST(ComposeMask, KnowsWhichKeysAreMet) {
  int blocks = 0, ragged = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    generate::AttentionOptions options = lists_alone();
    options.positions = generate::Presence::always;
    options.packed_q = options.packed_kv = generate::Presence::maybe;
    options.longest_window = seed % 3 == 0 ? 20 : 0;
    options.largest_kv_heads = 1;
    options.longest = 200;
    const auto c = generate::attention_case(seed, options);
    const AttentionProblem& p = c->problem;
    const AttentionShape shape = shape_of(p);
    const Composed composed(p, kQueries[seed % 6], 100);
    const ComposedMask& mask = composed.mask;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const Sequence sequence = sequences_of(p, shape).at(b);
      const NarrowSight sight = NarrowSight::of(sequence.sight);
      for (std::int64_t h = 0; h < shape.heads; ++h)
        for (std::int64_t first = 0; first < sequence.q_length; first += mask.queries) {
          const std::int64_t end = std::min(first + mask.queries, sequence.q_length);
          const std::int64_t set = h / mask.group;
          const ListRow row = composed.view.partial.row(b, set, first / mask.queries);
          const ListRow tiles = composed.view.partial.row_of(
              composed.view.bit_tile, composed.view.bit_tile_strides, b, set, first / mask.queries);
          for (std::int64_t entry = 0; entry < row.size; ++entry) {
            const std::int64_t key = row[entry] * kComposedKeys;
            const ComposedBits bits{composed.lists.bits + tiles[entry] * mask.block_words(),
                                    static_cast<std::int32_t>(mask.words),
                                    static_cast<std::int32_t>(mask.word_queries())};
            std::uint64_t expected = 0;
            const std::int64_t keys = std::min<std::int64_t>(sequence.kv_length - key, 64);
            for (std::int64_t j = 0; j < keys; ++j)
              for (std::int64_t i = first; i < end && (expected >> j & 1) == 0; ++i)
                if (oracle::visible(p, b, h, i, key + j)) expected |= std::uint64_t{1} << j;
            ASSERT_EQ(bits.met(sight, static_cast<std::int32_t>(first),
                               static_cast<std::int32_t>(end), static_cast<std::int32_t>(key)) &
                          bits_below(sequence.kv_length - key),
                      expected)
                << c->text << " queries from " << first << ", keys from " << key;
            ++blocks;
            ragged += expected != ~std::uint64_t{0};
          }
        }
    }
  }
  EXPECT_GT(ragged, 1000);
  EXPECT_GT(blocks - ragged, 10);
}

/// A composed block is full where the lists name all its pairs: it needs no element mask.
TEST(ComposeMask, BlocksOfAllPairsAreFull) {
  for (const std::int64_t block : {16, 24, 32, 48, 100}) {
    generate::AttentionOptions options = lists_alone();
    options.blocks.block_q = options.blocks.block_kv = block;
    options.blocks.names = [](std::int64_t, std::int64_t) { return true; };
    int full = 0;
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      const auto c = generate::attention_case(seed, options);
      if (c->problem.mask.full && c->problem.mask.partial) continue;
      const bool hidden = static_cast<bool>(c->problem.mask.bit_tile);
      const Composed composed(c->problem, 64, 100);
      for (std::int64_t row = 0; row < composed.mask.list_rows(); ++row) {
        if (hidden) continue;
        ASSERT_EQ(composed.lists.full_counts[row], composed.mask.columns) << c->text;
        ASSERT_EQ(composed.lists.partial_counts[row], 0) << c->text;
        ++full;
      }
    }
    EXPECT_GT(full, 5);
  }
}

/// Composed lists hold what a walk of the given mask visits, also where its lists are invalid.
TEST(ComposeMask, HostileListsAreClampedAndSkipped) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto c = generate::attention_case(seed, lists_alone());
    const AttentionProblem& p = c->problem;
    const AttentionShape shape = shape_of(p);
    generate::Random random(seed);
    for (const Tensor& list :
         {p.mask.full.counts, p.mask.full.offsets, p.mask.full.indices, p.mask.partial.counts,
          p.mask.partial.offsets, p.mask.partial.indices, p.mask.bit_tile}) {
      if (!list) continue;
      oracle::DenseArray values = oracle::read(list);
      for (double& value : values.values)
        if (random.chance(0.3)) value = random.pick({-1.0, -1e9, 2e9, 1e6, 7.0, 0.0});
      oracle::write(list, values);
    }
    const Composed composed(p, kQueries[seed % 6], 100);
    const MaskView given = view_of(p.mask, shape.kv_length, shape.heads_per_list());
    const oracle::DenseArray bits = p.mask.bits ? oracle::read(p.mask.bits) : oracle::DenseArray{};
    const std::int64_t bytes = (p.mask.block_kv + 7) / 8;
    for (std::int64_t b = 0; b < shape.batch; ++b)
      for (std::int64_t h = 0; h < shape.heads; ++h)
        for (std::int64_t i = 0; i < shape.q_length; ++i) {
          std::vector<int> expected(static_cast<std::size_t>(shape.kv_length));
          MaskWalk walk(given, {.used = {0, shape.kv_length}}, b, h, i, i);
          KeyStep step;
          while (walk.next(step))
            for (std::int64_t key = step.begin; key < step.begin + step.count; ++key) {
              const std::int64_t at = key - step.block_begin;
              const std::int64_t row = step.bit_tile * p.mask.block_q + i % p.mask.block_q;
              const bool shown =
                  step.bit_tile < 0 ||
                  (static_cast<int>(bits.values[static_cast<std::size_t>(row * bytes + at / 8)]) >>
                       at % 8 &
                   1) != 0;
              if (shown)
                expected[static_cast<std::size_t>(key)] = 1;  // a key listed twice counts once
            }
          ASSERT_EQ(composed.seen(b, h, i, shape.kv_length), expected) << c->text;
        }
  }
}

TEST(ComposeMask, ReadsBitsFromAnywhere) {
  std::vector<std::uint8_t> bytes(600);
  generate::Random random(1);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.between(0, 255));
  const BitTiles tiles{bytes.data() + 300, -90, 17, 2};
  for (std::int64_t tile = 0; tile < 3; ++tile)
    for (std::int64_t row = 0; row < 3; ++row)
      for (std::int64_t from = 0; from < 40; ++from)
        for (std::int64_t count = 0; count <= 64; ++count) {
          const std::uint64_t found = tiles.read(tile, row, from, count);
          for (std::int64_t i = 0; i < 64; ++i) {
            const std::int64_t at = 300 - 90 * tile + 17 * row + (from + i) / 8 * 2;
            const bool set =
                i < count && (bytes[static_cast<std::size_t>(at)] >> (from + i) % 8 & 1);
            ASSERT_EQ(found >> i & 1, set ? 1u : 0u);
          }
        }
}

}  // namespace
