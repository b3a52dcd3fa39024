// The walk of attention's backward pass on a GPU, key tile by key tile, against brute force: which
// pairs are visited, in which order the gradients of a block of queries are added, and which rows
// may never be read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "src/kernels/cuda/attention_backward/order.hpp"
#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"
#include "src/kernels/cuda/sm90/attention_backward/rows.hpp"
#include "tests/unit/compose_rows.hpp"
#include "tests/unit/walk_problem.hpp"

namespace tessera::planning {
namespace {

using testing::Bits;
using testing::WalkProblem;

constexpr Tile kTile = kSm90AttentionBackwardRows[0].tile;
static_assert(kTile.m == kQueriesPerBlock && kTile.n == kKeysPerTile);

std::size_t index_of(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Emulates the thread blocks one after the other, in the order of their tickets.
class Emulation {
 public:
  Emulation(WalkProblem& p, std::uint64_t concurrent_tiles, const TileShares& tile_shares = {})
      : p_(p) {
    AttentionBackwardShape shape{p.shape};
    const TileOrder order{static_cast<double>(concurrent_tiles), 1.5, concurrent_tiles % 2 == 1};
    layout_ = backward_layout(shape, 1, tile_shares, order);
    layout_.chains = 1;
    layout_.rotates = concurrent_tiles % 2 == 1 && may_rotate(shape, layout_);
    if (!layout_.edges && !layout_.rotates) layout_.chains = 1 << concurrent_tiles / 2 % 4;
    core::Carver sizes;
    carve_edges(sizes, layout_.edges);
    EXPECT_LE(static_cast<double>(sizes.used()), edge_bytes(layout_.edges) + 9 * 128);
    memory_.assign(index_of(sizes.used() / 8 + 1), ~std::uint64_t{0});
    core::Carver carver(memory_.data());
    walk_ = backward_walk(p.problem, p.shape, layout_, carve_edges(carver, layout_.edges));
    if (walk_.edges) write_edges();
    seen_.resize(index_of(p.batch * p.heads));
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.heads; ++h)
        seen_[index_of(b * p.heads + h)].assign(index_of(p.queries(b)), Bits(p.keys(b)));
  }

  void run() {
    for (int number = 0; number < layout_.tiles; ++number) {
      const KeyTilePlace place = place_of(number);
      if (place.batch < 0) continue;
      ASSERT_TRUE(tiles_.emplace(std::tuple{place.batch, place.share, place.tile}, 0).second);
      run_tile(describe_key_tile(walk_, place));
      if (::testing::Test::HasFatalFailure()) return;
    }
    for (std::int64_t b = 0; b < p_.batch; ++b) {
      const std::int64_t tiles = (p_.keys(b) + kKeysPerTile - 1) / kKeysPerTile;
      for (int share = 0; share < walk_.shares; ++share)
        for (std::int64_t t = 0; t < tiles; ++t)
          ASSERT_TRUE(tiles_.count({static_cast<int>(b), share, static_cast<int>(t)}))
              << "no thread block writes the gradients of keys of tile " << t;
    }
    for (std::int64_t b = 0; b < p_.batch; ++b)
      for (std::int64_t h = 0; h < p_.heads; ++h)
        for (std::int64_t i = 0; i < p_.queries(b); ++i)
          for (std::int64_t j = 0; j < p_.keys(b); ++j)
            ASSERT_EQ(seen_[index_of(b * p_.heads + h)][index_of(i)][j], sees(b, h, i, j))
                << "batch " << b << ", head " << h << ", pair " << i << ", " << j;
  }

 private:
  bool sees(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    return p_.sees(b, p_.set_of(h), i, j);
  }

  void write_edges() {
    MaskComposer composer;
    composer.given = view_of(p_.problem.mask, p_.shape.kv_length, p_.shape.heads_per_list());
    if (const Tensor& bits = p_.problem.mask.bits)
      composer.bits = {static_cast<const std::uint8_t*>(bits.data), bits.stride(0), bits.stride(1),
                       bits.stride(2)};
    composer.q_length = p_.shape.q_length;
    composer.kv_length = p_.shape.kv_length;
    composer.to = layout_.edges.mask;
    composer.lists = walk_.edges.lists;
    testing::compose_rows(composer, 100);
    const BlockEdges& edges = walk_.edges;
    std::fill_n(edges.bitmap, edges.sizes.bitmap_words(), 0u);
    std::fill_n(edges.keys, edges.sizes.key_words(), std::uint64_t{0});
    for (std::int64_t number = 0; number < edges.sizes.query_words(); ++number) {
      edges.queries[number] = 0;
      for (int lane = 0; lane < 32; ++lane)
        edges.queries[number] |= add_edges(
            edges, walk_.sequences, number, lane, 32,
            [](std::uint32_t* word, std::uint32_t bit) { *word |= bit; },
            [](std::uint64_t* word, std::uint64_t bits) { *word |= bits; });
    }
  }

  /// As the producer warp finds it for packed keys.
  KeyTilePlace place_of(int number) const {
    if (!walk_.keys.packed) return walk_.place_of(number);
    for (int b = 0; b < walk_.batches; ++b) {
      const int count =
          walk_.keys.count(static_cast<int>(walk_.sequences.at(b).kv_length)) * walk_.shares;
      if (number < count) return {b, number % walk_.shares, number / walk_.shares};
      number -= count;
    }
    return {};
  }

  void run_tile(const KeyTileJob& job) {
    std::uint64_t kept[2] = {job.kept[0], job.kept[1]};
    const int first_head = job.first_head, end_head = first_head + walk_.group;
    ASSERT_EQ(job.kv_head, first_head / (p_.heads / p_.kv_heads));
    if (walk_.edges)
      for (int half = 0; half < 2; ++half) {
        std::uint64_t listed = 0;
        for (int head = first_head; head < end_head; ++head)
          listed |= walk_.edges.kept(job.batch, head, job.tile * 2 + half);
        kept[half] &= listed;
      }
    expect_kept(job, kept);
    for (int head = first_head; head < end_head; ++head)
      for (int i = 0; i < job.end_block - job.first_block; ++i) {
        const int block = job.step_at(i, 1);
        if (walk_.edges) {
          if (block >= walk_.edges.sizes.mask.rows) continue;
          const std::uint32_t* words = walk_.edges.rows_of(job.batch, head, job.tile);
          if ((words[block / 32] >> block % 32 & 1) == 0) continue;
        }
        const bool all = (kept[0] & kept[1]) == ~std::uint64_t{0};
        run_step(job, kept, describe_step(walk_, job, all, head, block));
        if (::testing::Test::HasFatalFailure()) return;
      }
  }

  /// Keys that no query of the share's heads sees are cleared, and no others.
  void expect_kept(const KeyTileJob& job, const std::uint64_t (&kept)[2]) const {
    for (int key = 0; key < kKeysPerTile; ++key) {
      const std::int64_t j = job.tile * kKeysPerTile + key;
      bool wanted = false;
      if (j < p_.keys(job.batch) && job.end_block > job.first_block)
        for (std::int64_t h = job.first_head; h < job.first_head + walk_.group; ++h)
          for (std::int64_t i = 0; i < p_.queries(job.batch) && !wanted; ++i)
            wanted = sees(job.batch, h, i, j);
      ASSERT_EQ(kept[key / 64] >> key % 64 & 1, wanted) << "key " << j;
    }
  }

  void run_step(const KeyTileJob& job, const std::uint64_t (&kept)[2], const BackwardStep& step) {
    const std::int64_t b = job.batch, h = step.head;
    const int slot = sums_of(walk_, job, step) * walk_.query_blocks + job.query_slot + step.block;
    ASSERT_LT(job.query_slot + step.block, walk_.query_blocks);
    // A thread block waits for the one that visits the block before it, and for no other.
    ASSERT_EQ(turns_[slot], step.turn) << "tile " << job.tile << ", block " << step.block;
    turns_[slot] = job.rank + 1;
    const int queries = static_cast<int>(job.end_query(step.block)) - step.block * kQueriesPerBlock;
    ASSERT_GT(queries, 0);
    for (int i = 0; i < kQueriesPerBlock; ++i) {
      const std::int64_t query = step.block * kQueriesPerBlock + i;
      bool wanted = query >= p_.queries(b) && !p_.shape.q_packed;
      if (query < p_.queries(b))
        for (std::int64_t j = 0; j < p_.keys(b) && !wanted; ++j) wanted = sees(b, h, query, j);
      ASSERT_EQ(step.seeing >> i & 1, wanted) << "query " << query;
      if ((step.seeing >> i & 1) == 0) {
        ASSERT_TRUE(step.ragged);
      }
    }
    for (int key = 0; key < kKeysPerTile; ++key) {
      std::uint64_t seen = ~std::uint64_t{0};
      if (step.masked) {
        const int half = key / 64;
        seen = queries_of_key(job, step, kept[half], half, key % 64);
        if (step.bits[half] >= 0) {
          const std::uint64_t* words = walk_.edges.words(step.bits[half]);
          for (int i = 0; i < kQueriesPerBlock; ++i)
            if ((words[i / walk_.edges.sizes.mask.word_queries()] >> key % 64 & 1) == 0)
              seen &= ~(std::uint64_t{1} << i);
        }
      }
      const std::int64_t j = job.tile * kKeysPerTile + key;
      // The same pairs, query by query.
      for (int i = 0; i < kQueriesPerBlock && step.masked; ++i) {
        const int half = key / 64;
        const std::uint64_t keys = keys_of_query(walk_.edges, job, step, kept[half], half, i);
        ASSERT_EQ(keys >> key % 64 & 1, i < queries ? seen >> i & 1 : 0)
            << "query " << i << ", key " << key;
      }
      // Queries beyond the sequence have P = 0 by their statistics.
      for (int i = 0; i < queries; ++i) {
        if ((seen >> i & 1) == 0) continue;
        ASSERT_LT(j, p_.keys(b));
        Bits& of = seen_[index_of(b * p_.heads + h)][index_of(step.block * kQueriesPerBlock + i)];
        ASSERT_FALSE(of[j]) << "visited twice";
        of.set(j);
      }
    }
  }

  WalkProblem& p_;
  BackwardLayout layout_;
  BackwardWalk walk_;
  std::vector<std::uint64_t> memory_;
  std::map<std::tuple<int, int, int>, int> tiles_;
  std::map<int, int> turns_;
  std::vector<std::vector<Bits>> seen_;
};

TEST(BackwardWalk, VisitsEachVisiblePairOnceAndInOrder) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    WalkProblem p(seed, kTile);
    SCOPED_TRACE(seed);
    Emulation(p, seed % 8).run();
    if (HasFatalFailure()) return;
  }
}

TEST(BackwardWalk, SharesOfATileDivideItsSteps) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    WalkProblem p(seed, kTile);
    SCOPED_TRACE(seed);
    generate::Random random(seed);
    TileShares tile_shares;
    tile_shares.blocks = static_cast<int>(random.between(1, 5));
    const std::int64_t group = p.heads / p.kv_heads;
    do {
      tile_shares.heads = static_cast<int>(random.between(1, group));
    } while (group % tile_shares.heads != 0);
    Emulation(p, seed % 8, tile_shares).run();
    if (HasFatalFailure()) return;
  }
}

/// Each number below the bound of at most one block, whatever the offsets are.
TEST(BackwardWalk, BlocksOfPackedSequencesHaveNumbersOfTheirOwn) {
  generate::Random random(1);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t batch = random.between(1, 20);
    const RowBlocks blocks = RowBlocks::of(64, true, 0);
    std::vector<char> used;
    std::int64_t begin = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t length = random.chance(0.2) ? 0 : random.between(0, 300);
      const std::int64_t first = blocks.first(static_cast<int>(b), static_cast<int>(begin));
      ranges.emplace_back(first, first + blocks.count(static_cast<int>(length)));
      begin += length;
    }
    used.assign(index_of(blocks.bound(batch, begin)), 0);
    for (const auto& [first, end] : ranges)
      for (std::int64_t n = first; n < end; ++n) {
        ASSERT_LT(n, static_cast<std::int64_t>(used.size()));
        ASSERT_EQ(used[index_of(n)]++, 0);
      }
  }
}

/// The order of a block's statistics is a permutation.
TEST(BackwardWalk, MixedQueriesAreAPermutation) {
  std::vector<char> used(kQueriesPerBlock, 0);
  for (int query = 0; query < kQueriesPerBlock; ++query) {
    const int at = mixed_query(query);
    ASSERT_TRUE(at >= 0 && at < kQueriesPerBlock);
    ASSERT_EQ(used[index_of(at)]++, 0);
    // As a thread reads it: four numbers at c * 4 + (j ^ c / 2), of groups 2j and 2j + 1.
    const int g = query / 8, c = query / 2 % 4, j = g / 2;
    ASSERT_EQ(at, (c * 4 + (j ^ (c / 2))) * 4 + g % 2 * 2 + query % 2);
  }
}

}  // namespace
}  // namespace tessera::planning
