#include <cmath>

#include "tests/fixtures/expect.hpp"

namespace tessera {
namespace {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Presence;

constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

AttentionOptions dense() {
  AttentionOptions options;
  options.mask = options.packed_q = options.packed_kv = options.paged = Presence::never;
  return options;
}

void match(AttentionOptions options, std::uint64_t seeds) {
  for (DType dtype : kTypes) {
    options.dtype = dtype;
    for (std::uint64_t seed = 0; seed < generate::problems(seeds); ++seed) {
      expect::matches_oracle(*attention_case(seed, options));
    }
  }
}

TEST(Attention, PlainMatchesTheOracle) {
  AttentionOptions options = dense();
  options.positions = options.sinks = options.softcap = Presence::never;
  match(options, 60);
}

TEST(Attention, EverythingDenseMatchesTheOracle) { match(dense(), 400); }

TEST(Attention, PositionsMatchTheOracle) {
  AttentionOptions options = dense();
  options.positions = Presence::always;
  match(options, 150);
}

TEST(Attention, SinksAndSoftcapMatchTheOracle) {
  AttentionOptions options = dense();
  options.sinks = options.softcap = Presence::always;
  match(options, 80);
}

TEST(Attention, LongSequences) {
  AttentionOptions options = dense();
  options.longest = 700;
  options.largest_batch = options.largest_kv_heads = 1;
  match(options, 20);
}

TEST(Attention, RisingScoresMatchTheOracle) {
  AttentionOptions options = dense();
  options.rising = true;
  options.longest = 700;
  options.largest_batch = options.largest_kv_heads = 1;
  match(options, 20);
}

TEST(Attention, ContiguousTensorsMatchTheOracle) {
  AttentionOptions options = dense();
  options.layout = generate::Layout::contiguous;
  match(options, 60);
}

/// Visible NaN and infinities spread as in a dense softmax, only to the rows that see them.
TEST(Attention, NaNAndInfinitySpreadWhereTheyAreSeen) {
  AttentionOptions options = dense();
  options.bad_values = true;
  options.positions = options.softcap = Presence::never;
  match(options, 150);
}

/// One query of one head, with keys for several tiles and scores over a wide range: the row max
/// changes at every tile.
std::unique_ptr<generate::Case<AttentionProblem>> ramp(DType dtype, double step) {
  auto made = std::make_unique<generate::Case<AttentionProblem>>(1);
  generate::Memory& memory = made->memory;
  AttentionProblem& p = made->problem;
  p.q = memory.input(dtype, {1, 3, 1, 1}, generate::Layout::contiguous);
  p.k = memory.input(dtype, {1, 500, 1, 1}, generate::Layout::contiguous);
  p.v = memory.input(dtype, {1, 500, 1, 4}, generate::Layout::contiguous);
  p.out = memory.output(dtype, {1, 3, 1, 4}, generate::Layout::contiguous);
  p.lse = memory.output(DType::f32, {1, 1, 3}, generate::Layout::contiguous);
  memory.fill_normal(p.v);
  oracle::DenseArray q({1, 3, 1, 1}), k({1, 500, 1, 1});
  q.values = {1, -1, 0.5};
  for (std::size_t j = 0; j < 500; ++j) k.values[j] = step * (static_cast<double>(j) - 250);
  oracle::write(p.q, q);
  oracle::write(p.k, k);
  made->text = "ramp of " + std::to_string(step);
  return made;
}

TEST(Attention, RunningMaximumRisesAndFalls) {
  for (DType dtype : kTypes) {
    for (double step : {0.01, 0.25, 2.0, 100.0}) expect::matches_oracle(*ramp(dtype, step));
  }
}

TEST(Attention, NoQueriesNoKeysNoHeads) {
  for (DType dtype : kTypes) {
    for (int zero = 0; zero < 3; ++zero) {
      generate::Case<AttentionProblem> c(9);
      c.text = "zero " + std::to_string(zero);
      const std::int64_t batch = zero == 0 ? 0 : 2, q = zero == 1 ? 0 : 5, kv = zero == 2 ? 0 : 6;
      AttentionProblem& p = c.problem;
      p.q = c.memory.input(dtype, {batch, q, 4, 8}, generate::Layout::contiguous);
      p.k = c.memory.input(dtype, {batch, kv, 2, 8}, generate::Layout::contiguous);
      p.v = c.memory.input(dtype, {batch, kv, 2, 3}, generate::Layout::contiguous);
      p.out = c.memory.output(dtype, {batch, q, 4, 3}, generate::Layout::contiguous);
      p.lse = c.memory.output(DType::f32, {batch, 4, q}, generate::Layout::contiguous);
      expect::matches_oracle(c);
    }
  }
}

}  // namespace
}  // namespace tessera
