#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/attention.hpp"
#include "tests/gpu/rows.hpp"

// The gradients of attention by every row that supports a problem, against the oracle.
namespace tessera {
namespace {

using generate::AttentionOptions;
using generate::backward_case;
using generate::Layout;
using generate::Presence;
using gpu_test::check;
using gpu_test::OnGpu;
using gpu_test::Room;
using Case = generate::Case<AttentionBackwardProblem>;

class GpuAttentionBackward : public gpu_test::OfBackend {};
INSTANTIATE_TEST_SUITE_P(Backends, GpuAttentionBackward, gpu_test::gpu_backends(),
                         gpu_test::backend_name);

std::vector<int> backward_rows() {
  return gpu_test::rows_of(std::string(to_string(gpu_test::backend_under_test())) +
                           "_attention_backward");
}

AttentionOptions options_for(std::uint64_t seed) {
  AttentionOptions options = gpu_test::options_for(seed);
  options.dims = {8, 40, 64, 64, 72, 96, 128, 128, 136, 192, 256};
  options.longest = 260;
  options.wide_out = false;
  return options;
}

/// Runs a case by every row that supports it and compares with the oracle. Returns the number of
/// rows.
int matches_oracle(Case& c) {
  const OnGpu gpu(c);
  c.memory.arm();
  const oracle::AttentionGradients truth = oracle::attention_backward(c.problem);
  const oracle::AttentionGradients emulated = oracle::attention_backward_emulated(c.problem);
  int taken = 0;
  const AttentionBackwardProblem there = gpu.moved(c.problem);
  for (const int row : backward_rows()) {
    if (!gpu_test::takes(row, there)) continue;
    ++taken;
    const std::string text = c.text + " by " + gpu_test::name_of(row);
    c.memory.reset();
    gpu.upload();
    try {
      gpu_test::run_by(row, there);
    } catch (const Error& error) {
      ADD_FAILURE() << text << ": refused: " << error.what();
      continue;
    }
    gpu.download();
    EXPECT_EQ(c.memory.damage(), "") << text;
    const oracle::Comparison result = oracle::compare_gradients(c.problem, truth, emulated);
    EXPECT_TRUE(result.ok) << text << ": " << result.message;
  }
  return taken;
}

/// `change` sets options, `after` changes the finished case.
void all_match(
    std::uint64_t seeds, const std::function<void(AttentionOptions&)>& change,
    const std::function<void(Case&)>& after = [](Case&) {}) {
  int taken = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    AttentionOptions options = options_for(seed);
    change(options);
    const auto c = backward_case(seed, options);
    after(*c);
    taken += matches_oracle(*c);
    if (::testing::Test::HasFailure()) {
      // Later seeds fail alike, and each takes time.
      FAIL() << "stopped at seed " << seed;
    }
  }
  EXPECT_GT(taken, static_cast<int>(seeds) / 2) << "no row supports most problems";
}

void plain(AttentionOptions& o) {
  o.mask = o.packed_q = o.packed_kv = o.positions = o.sinks = o.softcap = Presence::never;
}

/// From small to large: the first test that fails shows what is wrong.
TEST_P(GpuAttentionBackward, OneStepMatchesTheOracle) {
  all_match(12, [](AttentionOptions& o) {
    plain(o);
    o.longest = 64;
    o.group = o.largest_batch = o.largest_kv_heads = 1;
  });
}

TEST_P(GpuAttentionBackward, OneKeyTileMatchesTheOracle) {
  all_match(16, [](AttentionOptions& o) {
    plain(o);
    o.longest = 128;
    o.group = o.largest_batch = o.largest_kv_heads = 1;
  });
}

TEST_P(GpuAttentionBackward, PlainMatchesTheOracle) { all_match(32, plain); }

TEST_P(GpuAttentionBackward, LongSequencesMatchTheOracle) {
  all_match(8, [](AttentionOptions& o) {
    plain(o);
    o.longest = 900;
    o.largest_batch = o.largest_kv_heads = 1;
    o.dims = {64, 128};
  });
}

/// Tiles of few queries add to several sums in turns.
TEST_P(GpuAttentionBackward, FewQueriesOfManyKeysMatchTheOracle) {
  all_match(8, [](AttentionOptions& o) {
    plain(o);
    o.positions = Presence::maybe;
    o.max_queries = 100;
    o.longest = 2500;
    o.largest_batch = 2;
    o.dims = {64, 96, 128, 256};
  });
}

/// Thread blocks with half of a key tile: last halves without keys, and one key.
TEST_P(GpuAttentionBackward, WideHeadsMatchTheOracle) {
  for (const std::int64_t longest : {64, 65, 129, 500})
    all_match(16, [&](AttentionOptions& o) {
      plain(o);
      o.positions = Presence::maybe;
      o.longest = longest;
      o.largest_batch = o.largest_kv_heads = 1;
      o.dims = {136, 160, 192, 200, 248, 256};
    });
}

TEST_P(GpuAttentionBackward, GroupsOfHeadsMatchTheOracle) {
  for (const std::int64_t group : {2, 3, 5, 8})
    all_match(6, [&](AttentionOptions& o) {
      plain(o);
      o.group = group;
      o.largest_kv_heads = 2;
    });
}

TEST_P(GpuAttentionBackward, CausalAndWindowsMatchTheOracle) {
  all_match(40, [](AttentionOptions& o) {
    plain(o);
    o.positions = Presence::always;
  });
}

TEST_P(GpuAttentionBackward, NarrowWindowsMatchTheOracle) {
  all_match(12, [](AttentionOptions& o) {
    plain(o);
    o.positions = Presence::maybe;
    o.longest_window = 30;
    o.longest = 500;
    o.largest_batch = o.largest_kv_heads = 1;
  });
}

TEST_P(GpuAttentionBackward, SinksMatchTheOracle) {
  all_match(24, [](AttentionOptions& o) {
    plain(o);
    o.sinks = Presence::always;
    o.positions = Presence::maybe;
  });
}

TEST_P(GpuAttentionBackward, SoftcapMatchesTheOracle) {
  all_match(32, [](AttentionOptions& o) {
    plain(o);
    o.softcap = Presence::always;
    o.positions = Presence::maybe;
  });
}

TEST_P(GpuAttentionBackward, EverythingDenseMatchesTheOracle) {
  all_match(60, [](AttentionOptions& o) { o.mask = Presence::never; });
}

TEST_P(GpuAttentionBackward, PackedSequencesMatchTheOracle) {
  all_match(40, [](AttentionOptions& o) {
    o.mask = Presence::never;
    o.packed_q = o.packed_kv = Presence::always;
    o.largest_batch = 5;
    o.longest = 200;
  });
}

/// Lengths of 0 and 1: dsinks without a query, dk and dv of keys that no query sees.
TEST_P(GpuAttentionBackward, SequencesWithoutQueriesMatchTheOracle) {
  int without = 0;
  all_match(
      32,
      [](AttentionOptions& o) {
        o.mask = Presence::never;
        o.packed_q = o.packed_kv = o.sinks = Presence::always;
        o.largest_batch = 2;
        o.longest = 1;
      },
      [&](const Case& c) { without += c.problem.forward.q.numel() == 0; });
  EXPECT_GT(without, 0);
}

TEST_P(GpuAttentionBackward, BlocksOf64And128MatchTheOracle) {
  for (const std::int64_t block : {64, 128})
    all_match(24, [&](AttentionOptions& o) {
      o.mask = Presence::always;
      o.blocks.block_q = o.blocks.block_kv = block;
      o.longest = 500;
      o.largest_batch = 2;
      o.largest_kv_heads = 1;
    });
}

/// Adjacent lists of 64 rows, and of 64 keys: where a consumer leaves out more steps than there are
/// stages, all steps of a tile, the first or the last ones, and every second one.
TEST_P(GpuAttentionBackward, StepsThatOneConsumerLeavesOutMatchTheOracle) {
  const std::function<bool(std::int64_t, std::int64_t)> kinds[] = {
      [](std::int64_t row, std::int64_t col) { return row % 2 == 0 || col % 11 == 3; },
      [](std::int64_t row, std::int64_t col) { return row % 11 == 3 || col % 2 == 0; },
      [](std::int64_t row, std::int64_t col) { return (row + col) % 2 == 0; },
      [](std::int64_t row, std::int64_t col) { return (row < 6) == (col % 2 == 0); },
      [](std::int64_t row, std::int64_t col) { return (col < 6) == (row % 2 == 0); },
      [](std::int64_t row, std::int64_t col) { return row % 2 == 1 && col % 2 == 1; },
      [](std::int64_t row, std::int64_t col) { return (row * 5 + col * 3) % 8 == 0; },
  };
  for (const auto& names : kinds)
    all_match(4, [&](AttentionOptions& o) {
      o.mask = Presence::always;
      o.blocks.block_q = o.blocks.block_kv = 64;
      o.blocks.names = names;
      o.longest = 1500;
      o.largest_batch = o.largest_kv_heads = o.group = 1;
      o.dims = {64, 96, 128};
    });
}

TEST_P(GpuAttentionBackward, AnyBlocksMatchTheOracle) {
  all_match(48, [](AttentionOptions& o) {
    o.mask = Presence::always;
    o.blocks.smallest_block = o.blocks.block_step = 1;
  });
}

TEST_P(GpuAttentionBackward, ListsOfHeadsOfKeysMatchTheOracle) {
  for (const std::int64_t group : {2, 3, 4})
    all_match(8, [&](AttentionOptions& o) {
      o.mask = o.blocks.by_keys = Presence::always;
      o.group = group;
    });
}

TEST_P(GpuAttentionBackward, AnyOrderMatchesTheOracle) {
  const auto in_any_order = [](Case& c) { c.problem.deterministic = false; };
  all_match(
      40, [](AttentionOptions& o) { o.mask = Presence::never; }, in_any_order);
  all_match(
      20, [](AttentionOptions& o) { o.mask = Presence::always; }, in_any_order);
}

/// dout that cannot be copied as it lies: any strides, or one number for all.
TEST_P(GpuAttentionBackward, AnyStridesOfGradientsMatchTheOracle) {
  all_match(
      24, [](AttentionOptions& o) { o.mask = Presence::never; },
      [](Case& c) {
        const Tensor former = c.problem.dout;
        const std::vector<std::int64_t> shape(former.shape.begin(),
                                              former.shape.begin() + former.rank);
        if (c.random.chance(0.3)) {
          Tensor one = c.memory.input(former.dtype, {1}, Layout::contiguous);
          c.memory.fill_normal(one);
          c.problem.dout.data = one.data;
          for (int i = 0; i < former.rank; ++i)
            c.problem.dout.strides[static_cast<std::size_t>(i)] = 0;
        } else {
          c.problem.dout = c.memory.input(former.dtype, shape, Layout::wild);
          c.memory.fill_normal(c.problem.dout);
        }
        for (Tensor* gradient : {&c.problem.dq, &c.problem.dk, &c.problem.dv}) {
          if (!*gradient) continue;
          const std::vector<std::int64_t> sizes(gradient->shape.begin(),
                                                gradient->shape.begin() + gradient->rank);
          *gradient = c.memory.output(gradient->dtype, sizes, Layout::wild);
        }
      });
}

/// out and dout in f32: dout is rounded to the inputs' dtype before it is multiplied.
TEST_P(GpuAttentionBackward, WideResultsMatchTheOracle) {
  all_match(24, [](AttentionOptions& o) {
    plain(o);
    o.wide_out = true;
  });
}

/// Inputs in GPU memory for problems that are too large for the oracle.
class LargeProblem {
 public:
  LargeProblem(std::int64_t batch, std::int64_t length, std::int64_t heads, std::int64_t kv_heads,
               std::int64_t dim, bool causal, std::int64_t kv_length = 0) {
    if (kv_length == 0) kv_length = length;
    AttentionProblem& f = problem.forward;
    f.q = make({batch, length, heads, dim}, true);
    f.k = make({batch, kv_length, kv_heads, dim}, true);
    f.v = make({batch, kv_length, kv_heads, dim}, true);
    f.out = make({batch, length, heads, dim}, false);
    f.lse = tensor(room(4 * batch * heads * length), DType::f32, {batch, heads, length}, kDevice);
    f.causal = causal;
    attention(f, gpu_test::on_backend());
    problem.dout = make({batch, length, heads, dim}, true);
    problem.dq = make({batch, length, heads, dim}, false);
    problem.dk = make({batch, kv_length, kv_heads, dim}, false);
    problem.dv = make({batch, kv_length, kv_heads, dim}, false);
  }

  std::vector<std::byte> gradients() const {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<std::byte> all;
    for (const Tensor& t : {problem.dq, problem.dk, problem.dv}) {
      const std::size_t before = all.size(), bytes = static_cast<std::size_t>(t.numel()) * 2;
      all.resize(before + bytes);
      check(cudaMemcpy(all.data() + before, t.data, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
    }
    return all;
  }

  AttentionBackwardProblem problem;

 private:
  static constexpr Device kDevice{DeviceKind::cuda, 0};

  void* room(std::int64_t bytes) {
    return rooms_.emplace_back(std::make_unique<Room>(bytes))->buffer().data;
  }
  Tensor make(std::vector<std::int64_t> s, bool filled) {
    const std::int64_t count = s[0] * s[1] * s[2] * s[3];
    Tensor t = tensor(room(2 * count), DType::bf16, {s[0], s[1], s[2], s[3]}, kDevice);
    if (!filled) return t;
    std::vector<std::uint16_t> host(static_cast<std::size_t>(count));
    for (std::uint16_t& x : host) {
      const auto value = static_cast<float>(random_.normal());
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, 4);
      x = static_cast<std::uint16_t>(bits >> 16);
    }
    check(cudaMemcpy(t.data, host.data(), host.size() * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
    return t;
  }

  generate::Random random_{7};
  std::vector<std::unique_ptr<Room>> rooms_;
};

/// Many thread blocks that add to the same sums.
TEST_P(GpuAttentionBackward, SameBitsEveryTime) {
  for (const std::int64_t dim : {64, 96, 128, 192, 256})
    for (const bool causal : {false, true})
      // Of groups of three heads, tiles of 128 rows have two without queries.
      for (const auto& [heads, kv_heads, softcap] :
           {std::tuple{4, 2, 0.0f}, {4, 4, 0.0f}, {6, 2, 30.0f}}) {
        LargeProblem large(2, 1500, heads, kv_heads, dim, causal);
        large.problem.forward.softcap = softcap;
        for (const int row : backward_rows()) {
          const planning::Tile& tile = gpu_test::row_at(row).tile;
          if (tile.k != dim || !gpu_test::takes(row, large.problem)) continue;
          std::vector<std::byte> first;
          for (int i = 0; i < 30; ++i) {
            gpu_test::run_by(row, large.problem);
            const std::vector<std::byte> now = large.gradients();
            if (i == 0) first = now;
            ASSERT_EQ(std::memcmp(now.data(), first.data(), now.size()), 0)
                << "run " << i << " by " << gpu_test::name_of(row) << ", causal " << causal;
          }
        }
      }
}

/// More tiles than SMs: thread blocks take several, of keys or of queries; without a mask tiles
/// begin at blocks of their own. Rows of one width agree.
TEST_P(GpuAttentionBackward, RowsAgreeOnManyTiles) {
  const auto value = [](const std::vector<std::byte>& all, std::size_t i) {
    std::uint16_t high = 0;
    std::memcpy(&high, &all[2 * i], 2);
    const std::uint32_t bits = std::uint32_t{high} << 16;
    float x = 0;
    std::memcpy(&x, &bits, 4);
    return static_cast<double>(x);
  };
  for (const std::int64_t dim : {64, 128, 192, 256})
    for (const bool causal : {false, true}) {
      LargeProblem large(2, 2900, 8, 4, dim, causal);
      std::vector<std::byte> first;
      for (const int row : backward_rows()) {
        const planning::Tile& tile = gpu_test::row_at(row).tile;
        if (tile.k != dim || !gpu_test::takes(row, large.problem)) continue;
        gpu_test::run_by(row, large.problem);
        const std::vector<std::byte> now = large.gradients();
        if (first.empty()) first = now;
        double apart = 0, all = 0;
        for (std::size_t i = 0; i < now.size() / 2; ++i) {
          const double x = value(first, i), y = value(now, i);
          apart += (x - y) * (x - y), all += x * x;
        }
        EXPECT_LE(apart, 1e-4 * all) << gpu_test::name_of(row) << ", causal " << causal;
      }
    }
}

/// One head: its key tiles wait for each other from the first step on.
TEST_P(GpuAttentionBackward, MoreKeyTilesThanSmsOfOneHead) {
  for (const std::int64_t dim : {128, 256})
    for (const bool causal : {false, true}) {
      LargeProblem large(1, 20000, 1, 1, dim, causal);
      attention_backward(large.problem, gpu_test::on_backend());
      const std::vector<std::byte> first = large.gradients();
      attention_backward(large.problem, gpu_test::on_backend());
      ASSERT_EQ(large.gradients(), first);
    }
}

/// Few queries: key tiles add to several sums in turns, which the last kernel adds up in order.
TEST_P(GpuAttentionBackward, FewQueriesOfManyKeysHaveTheSameBits) {
  for (const std::int64_t dim : {64, 128, 256})
    for (const bool causal : {false, true}) {
      LargeProblem large(1, 150, 4, 2, dim, causal, 20000);
      std::vector<std::byte> first;
      for (const int row : backward_rows()) {
        if (gpu_test::row_at(row).tile.k != dim || !gpu_test::takes(row, large.problem)) continue;
        gpu_test::run_by(row, large.problem);
        first = large.gradients();
        for (int i = 0; i < 10; ++i) {
          gpu_test::run_by(row, large.problem);
          ASSERT_EQ(large.gradients(), first) << gpu_test::name_of(row) << ", causal " << causal;
        }
      }
      ASSERT_FALSE(first.empty());
    }
}

/// Replays with other lists in the same buffers.
TEST_P(GpuAttentionBackward, GraphsReplayWithAnotherMask) {
  int taken = 0;
  for (const std::uint64_t seed : {3u, 5u, 11u, 14u}) {
    AttentionOptions options = options_for(seed);
    options.mask = Presence::always;
    options.packed_q = options.packed_kv = options.positions = options.sinks = Presence::never;
    options.dims = {64, 128, 256};
    options.longest = 500;
    const auto c = backward_case(seed, options);
    const OnGpu gpu(*c);
    const AttentionBackwardProblem problem = gpu.moved(c->problem);
    c->memory.arm();
    if (c->problem.forward.q.numel() == 0) continue;
    gpu.upload();
    std::vector<std::pair<int, std::unique_ptr<gpu_test::Captured>>> captured;
    for (const int row : backward_rows())
      if (gpu_test::takes(row, problem))
        captured.emplace_back(
            row, std::make_unique<gpu_test::Captured>(gpu_test::plan_by(row, problem), problem));
    taken += captured.empty() ? 0 : 1;
    for (int round = 0; round < 3; ++round) {
      c->memory.reset();
      // Each round removes an entry from every list.
      const BlockMask& mask = c->problem.forward.mask;
      for (const Tensor& counts : {mask.full.counts, mask.partial.counts}) {
        if (!counts) continue;
        oracle::DenseArray values = oracle::read(counts);
        for (double& count : values.values) count = std::max(0.0, count - round);
        oracle::write(counts, values);
      }
      // The forward pass with the new lists.
      const oracle::Attention forward = oracle::attention(c->problem.forward);
      oracle::write(c->problem.forward.out, forward.out);
      oracle::write(c->problem.forward.lse, forward.lse);
      c->memory.arm();
      for (const auto& [row, graph] : captured) {
        const std::string text =
            c->text + " by " + gpu_test::name_of(row) + ", round " + std::to_string(round);
        c->memory.reset();
        gpu.upload();
        graph->launch();
        gpu.download();
        EXPECT_EQ(c->memory.damage(), "") << text;
        const oracle::Comparison result = oracle::check(c->problem);
        EXPECT_TRUE(result.ok) << text << ": " << result.message;
      }
    }
  }
  EXPECT_GT(taken, 1);
}

/// Unchecked lists never lead outside the tensors, and every run ends.
TEST_P(GpuAttentionBackward, HostileLists) {
  int ran = 0;
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    AttentionOptions options = options_for(seed);
    options.mask = Presence::always;
    options.dims = {64, 128};
    const auto c = backward_case(seed, options);
    const OnGpu gpu(*c);
    const AttentionBackwardProblem problem = gpu.moved(c->problem);
    if (c->problem.forward.q.numel() == 0) continue;
    generate::Random random(seed);
    const AttentionProblem& f = c->problem.forward;
    for (const Tensor& list :
         {f.mask.full.counts, f.mask.full.offsets, f.mask.full.indices, f.mask.partial.counts,
          f.mask.partial.offsets, f.mask.partial.indices, f.mask.bit_tile, f.q_offsets,
          f.kv_offsets, f.kv_end}) {
      if (!list) continue;
      oracle::DenseArray values = oracle::read(list);
      for (double& value : values.values)
        if (random.chance(0.3)) value = random.pick({-1.0, -1e9, 2e9, 1e6, 7.0, 0.0});
      oracle::write(list, values);
    }
    c->memory.arm();
    for (const int row : backward_rows()) {
      if (!gpu_test::takes(row, problem)) continue;
      gpu.upload();
      gpu_test::run_by(row, problem);
      gpu.download();
      EXPECT_EQ(c->memory.damage(), "") << c->text << " by " << gpu_test::name_of(row);
      ++ran;
    }
  }
  EXPECT_GT(ran, 10);
}

}  // namespace
}  // namespace tessera
