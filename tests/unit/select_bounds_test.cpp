// Shortcuts of selection: the result must be that of comparing everything.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

#include <tessera/error.hpp>

#include "src/kernels/cuda/attention/cost.hpp"
#include "src/kernels/cuda/attention/layout.hpp"
#include "src/kernels/cuda/sm90/attention/rows.hpp"
#include "tests/unit/selecting.hpp"

namespace tessera::planning {
namespace {

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution(first, last)(engine_);
  }
  bool one_in(int n) { return between(1, n) == 1; }
  /// A small size, a power of two, or any size.
  std::int64_t size() {
    return one_in(3)   ? between(0, 300)
           : one_in(2) ? between(1, 17000)
                       : std::int64_t{1} << between(3, 16);
  }

 private:
  std::mt19937_64 engine_;
};

Tensor shaped(std::initializer_list<std::int64_t> shape) {
  return tensor(nullptr, DType::bf16, shape, {DeviceKind::cuda, 0});
}

MatmulProblem product(Random& random) {
  const std::int64_t m = random.one_in(2) ? random.between(0, 260) : random.size();
  const std::int64_t n = random.size(), k = random.size();
  const std::int64_t batch = random.one_in(4) ? random.between(1, 40) : 1;
  MatmulProblem p;
  p.a = shaped({batch, m, k});
  p.b = random.one_in(2) ? Operand(shaped({batch, k, n})) : transpose(shaped({batch, n, k}));
  p.out = shaped({batch, m, n});
  if (random.one_in(2))
    std::swap(p.a, p.b), p.a.transposed ^= true, p.b.transposed ^= true,
        p.out = shaped({batch, n, m});
  return p;
}

AttentionProblem attention(Random& random) {
  const std::int64_t batch = random.between(1, 4), kv_heads = random.between(1, 9);
  const std::int64_t heads = kv_heads * random.between(1, 8), dim = 8 * random.between(1, 32);
  const std::int64_t q_length = random.one_in(3) ? random.between(1, 9) : random.size();
  const std::int64_t kv_length = random.one_in(2) ? q_length : random.size();
  AttentionProblem p;
  p.q = p.out = shaped({batch, q_length, heads, dim});
  p.k = p.v = shaped({batch, kv_length, kv_heads, dim});
  p.causal = random.one_in(2);
  return p;
}

DeviceFacts device(Random& random) {
  DeviceFacts facts = device_preset(random.one_in(2) ? "h100" : "h200");
  if (random.one_in(4)) facts.units = static_cast<int>(random.between(1, 200));
  return facts;
}

TEST(SelectBounds, ChooseTakesTheRowThatExplainRanksFirst) {
  Random random(1);
  for (int i = 0; i < 4000; ++i) {
    const AnyProblem problem = i % 2 ? AnyProblem(product(random)) : AnyProblem(attention(random));
    const DeviceFacts facts = device(random);
    const Explanation all = select(problem, facts);
    if (!all.supported) continue;
    const Plan plan = choose(problem, facts);
    ASSERT_EQ(plan.kernel_name, all.plan.kernel_name) << all.problem;
    ASSERT_EQ(plan.predicted_ms, all.plan.predicted_ms) << all.problem;
  }
}

TEST(SelectBounds, SectionsAreTheFirstThatFillTheGpu) {
  for (std::int64_t tiles = 1; tiles < 300; tiles += tiles < 20 ? 1 : 13) {
    for (std::int64_t heads = 1; heads < 1200; ++heads) {
      constexpr std::int64_t kSms = 132;
      const std::int64_t min = std::max<std::int64_t>(2 * kSms / tiles, 1);
      std::int64_t expected = min;
      for (std::int64_t section = 2 * min; section >= min; --section)
        if (heads % section == 0 || heads % section * tiles >= 2 * kSms) expected = section;
      ASSERT_EQ(section_of(heads, tiles, kSms), expected) << heads << " heads of " << tiles;
    }
  }
}

TEST(SelectBounds, FastestSplitIsAmongThoseThatAreTried) {
  Random random(3);
  for (int i = 0; i < 20000; ++i) {
    const Tile tile = kSm90AttentionRows[random.between(0, std::size(kSm90AttentionRows) - 1)].tile;
    const std::int64_t tiles = random.between(1, 40), rounds = random.between(2, 4000);
    const std::int64_t max = std::min(rounds, random.between(2, 264) / tiles);
    const double step = 1e-8 * static_cast<double>(random.between(1, 500));
    const auto seconds = [&](std::int64_t each) {
      return static_cast<double>((rounds + each - 1) / each) * step +
             merge_seconds(tile, tiles, each * tiles);
    };
    const auto least = [&](std::int64_t first, std::int64_t end) {
      double found = std::numeric_limits<double>::infinity();
      for (std::int64_t each = first; each < end; ++each) found = std::min(found, seconds(each));
      return found;
    };
    const auto [first, end] = fastest_ctas_per_tile(rounds, step, max, tiles, tile);
    ASSERT_GE(first, 2);
    ASSERT_LE(end, std::max(max, std::int64_t{1}) + 1);
    ASSERT_EQ(least(first, end), least(2, max + 1))
        << rounds << " rounds of " << step << " s, " << tiles << " tiles, up to " << max;
  }
}

}  // namespace
}  // namespace tessera::planning
