#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "tests/support/compare.hpp"
#include "tests/support/generate.hpp"

// The oracle against results by hand, its gradients against finite differences, and sparse against
// dense.
namespace tessera::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

HostTensor host(DType dtype, const std::vector<std::int64_t>& shape,
                const std::vector<double>& values) {
  HostTensor tensor(dtype, shape);
  DenseArray array(shape);
  array.values = values;
  write(tensor, array);
  return tensor;
}

TEST(Rounding, MatchesKnownValues) {
  EXPECT_EQ(round_to(DType::f16, 1.0 + 0x1p-11), 1.0);  // ties go to even
  EXPECT_EQ(round_to(DType::f16, 1.0 + 3 * 0x1p-11), 1.0 + 0x1p-9);
  EXPECT_EQ(round_to(DType::bf16, 1.0 + 0x1p-8 + 0x1p-20), 1.0 + 0x1p-7);
  EXPECT_EQ(round_to(DType::f16, 65519.0), 65504.0);
  EXPECT_EQ(round_to(DType::f16, 65520.0), kInfinity);
  EXPECT_EQ(round_to(DType::f16, -1e9), -kInfinity);
  EXPECT_EQ(round_to(DType::f16, 0x1p-25), 0.0);
  EXPECT_EQ(round_to(DType::f16, 0x1.8p-25), 0x1p-24);
  EXPECT_EQ(ulp(DType::f16, 1.0), 0x1p-10);
  EXPECT_EQ(ulp(DType::bf16, 3.0), 0x1p-6);
  EXPECT_EQ(ulp(DType::f32, 0.0), 0x1p-149);
}

TEST(Rounding, RoundTripsEveryHalf) {
  for (DType dtype : {DType::f16, DType::bf16}) {
    HostTensor in(dtype, {65536}), out(dtype, {65536});
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      in.data<std::uint16_t>()[bits] = static_cast<std::uint16_t>(bits);
    }
    const DenseArray array = read(in);
    write(out, array);
    for (std::size_t bits = 0; bits < 65536; ++bits) {
      const double expected = load_as_float(in.view().data, dtype, static_cast<std::int64_t>(bits));
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(array.values[bits]));
      } else {
        EXPECT_EQ(array.values[bits], expected);
        EXPECT_EQ(in.data<std::uint16_t>()[bits], out.data<std::uint16_t>()[bits]);
      }
    }
  }
}

TEST(Rounding, MatchesTheHardwareForFloats) {
  generate::Random random(3);
  for (int n = 0; n < 10000; ++n) {
    const double x = random.normal() * std::exp2(random.between(-160, 130));
    EXPECT_EQ(round_to(DType::f32, x), static_cast<double>(static_cast<float>(x)));
  }
}

TEST(Products, DenseByHand) {
  const HostTensor a = host(DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
  const HostTensor b = host(DType::f32, {3, 2}, {1, 0, 0, 1, 2, -1});
  HostTensor out(DType::f32, {2, 2});
  MatmulProblem problem{.a = a.view(), .b = b.view(), .out = out};
  EXPECT_EQ(oracle::matmul(problem).value.values, (std::vector<double>{7, -1, 16, -1}));
  const HostTensor c = host(DType::f32, {2, 2}, {1, 1, 1, 1});
  const HostTensor bias = host(DType::f32, {2}, {10, -20});
  problem.epilogue = {.alpha = 2, .beta = 3, .c = c, .bias = bias};
  EXPECT_EQ(oracle::matmul(problem).value.values, (std::vector<double>{27, -19, 45, -19}));
  problem.epilogue.bias_axis = BiasAxis::row;
  problem.epilogue.activation = Activation::relu;
  EXPECT_EQ(oracle::matmul(problem).value.values, (std::vector<double>{27, 11, 15, 0}));
}

TEST(Products, TransposesByHand) {
  const HostTensor a = host(DType::f32, {3, 2}, {1, 4, 2, 5, 3, 6});
  const HostTensor b = host(DType::f32, {2, 3}, {1, 0, 2, 0, 1, -1});
  HostTensor out(DType::f32, {2, 2});
  const MatmulProblem problem{
      .a = transpose(Operand(a.view())), .b = transpose(Operand(b.view())), .out = out};
  EXPECT_EQ(oracle::matmul(problem).value.values, (std::vector<double>{7, -1, 16, -1}));
}

TEST(Products, GroupsByHand) {
  const HostTensor a = host(DType::f32, {3, 1}, {1, 2, 3});
  const HostTensor b = host(DType::f32, {3, 1, 1}, {10, 100, 1000});
  const HostTensor cuts = host(DType::i64, {4}, {0, 1, 1, 3});
  HostTensor out(DType::f32, {3, 1});
  MatmulProblem problem{.a = a.view(), .b = b.view(), .out = out, .group_offsets = cuts};
  EXPECT_EQ(oracle::matmul(problem).value.values, (std::vector<double>{10, 2000, 3000}));
  const HostTensor rows = host(DType::f32, {1, 3}, {1, 2, 3});
  const HostTensor columns = host(DType::f32, {3, 1}, {10, 100, 1000});
  HostTensor each(DType::f32, {3, 1, 1});
  problem.a = rows.view();
  problem.b = columns.view();
  problem.out = each;
  problem.group_axis = GroupAxis::inner;
  EXPECT_EQ(oracle::matmul(problem).value.values, (std::vector<double>{10, 0, 3200}));
}

TEST(Products, ActivationsAtKnownPoints) {
  const HostTensor one = host(DType::f32, {1, 1}, {1});
  HostTensor out(DType::f32, {1, 1});
  MatmulProblem problem{.a = one.view(), .b = one.view(), .out = out};
  const auto at_one = [&](Activation activation) {
    problem.epilogue.activation = activation;
    return oracle::matmul(problem).value.values[0];
  };
  EXPECT_NEAR(at_one(Activation::gelu), 0.8413447460685429, 1e-15);
  EXPECT_NEAR(at_one(Activation::gelu_tanh), 0.8411919906082768, 1e-12);
  EXPECT_NEAR(at_one(Activation::silu), 0.7310585786300049, 1e-15);
}

/// A sparse operand multiplied as its dense twin gives the same result.
TEST(Products, SparseEqualsDense) {
  generate::Random random(5);
  for (int round = 0; round < 40; ++round) {
    generate::Memory memory(random);
    const generate::WildBsr bsr =
        generate::wild_bsr(random, memory, 12, 20, random.pick({1, 2, 3, 4}),
                           random.pick({1, 2, 4, 5}), DType::f32, 1, false);
    const BsrMatrix& m = bsr.matrix;
    HostTensor dense(DType::f32, {12, 20});
    const DenseArray values = read(m.values);
    DenseArray twin({12, 20});
    const Pattern& pattern = bsr.patterns[0];
    for (std::int64_t row = 0; row < pattern.rows; ++row) {
      for (auto p = pattern.offsets[static_cast<std::size_t>(row)];
           p < pattern.offsets[static_cast<std::size_t>(row) + 1]; ++p) {
        const std::int64_t col = pattern.indices[static_cast<std::size_t>(p)];
        for (std::int64_t e = 0; e < m.block_rows() * m.block_cols(); ++e) {
          const std::int64_t i = e / m.block_cols(), j = e % m.block_cols();
          twin({row * m.block_rows() + i, col * m.block_cols() + j}) = values({p, i, j});
        }
      }
    }
    write(dense, twin);
    for (bool transposed : {false, true}) {
      HostTensor other(DType::f32, {transposed ? 12 : 20, 7});
      memory.fill_normal(other);
      HostTensor out(DType::f32, {transposed ? 20 : 12, 7});
      MatmulProblem problem{.a = m, .b = other.view(), .out = out};
      problem.a.transposed = transposed;
      const DenseArray sparse = oracle::matmul(problem).value;
      problem.a = dense.view();
      problem.a.transposed = transposed;
      EXPECT_EQ(sparse.values, oracle::matmul(problem).value.values);
    }
  }
}

TEST(Products, SddmmIsTheProductAtItsBlocks) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto c = generate::sddmm_case(seed);
    SddmmProblem& problem = c->problem;
    if (problem.out.values.rank != 3 || problem.out.row_offsets.rank != 1) continue;
    if (problem.out.col_indices.rank != 1) continue;
    problem.beta = 0;
    HostTensor out(DType::f32, {problem.out.rows, problem.out.cols});
    MatmulProblem dense{.a = problem.a, .b = problem.b, .out = out};
    dense.epilogue.alpha = problem.alpha;
    const DenseArray product = oracle::matmul(dense).value;
    const DenseArray values = oracle::sddmm(problem).value;
    const DenseArray offsets = read(problem.out.row_offsets);
    const DenseArray columns = read(problem.out.col_indices);
    const std::int64_t r = problem.out.block_rows(), k = problem.out.block_cols();
    for (std::int64_t row = 0; row + 1 < offsets.size(0); ++row) {
      for (auto p = static_cast<std::int64_t>(offsets({row})); p < offsets({row + 1}); ++p) {
        const auto col = static_cast<std::int64_t>(columns({p}));
        EXPECT_EQ(values({p, r - 1, k - 1}), product({row * r + r - 1, col * k + k - 1}));
      }
    }
  }
}

// ---- Attention ---------------------------------------------------------------------------------

/// One head of dimension 1, so that scores are q * k.
struct Tiny {
  HostTensor q, k, v, out, lse;
  AttentionProblem problem;

  Tiny(const std::vector<double>& queries, const std::vector<double>& keys,
       const std::vector<double>& values)
      : q(host(DType::f32, {1, static_cast<std::int64_t>(queries.size()), 1, 1}, queries)),
        k(host(DType::f32, {1, static_cast<std::int64_t>(keys.size()), 1, 1}, keys)),
        v(host(DType::f32, {1, static_cast<std::int64_t>(keys.size()), 1, 1}, values)),
        out(DType::f32, {1, static_cast<std::int64_t>(queries.size()), 1, 1}) {
    problem.q = q;
    problem.k = k;
    problem.v = v;
    problem.out = out;
  }
};

TEST(Attention, SoftmaxByHand) {
  const Tiny tiny({1}, {0, std::log(3.0)}, {8, 4});
  const Attention result = oracle::attention(tiny.problem);
  EXPECT_NEAR(result.out.values[0], (8 + 3 * 4) / 4.0, 1e-6);
  EXPECT_NEAR(result.lse.values[0], std::log(4.0), 1e-6);
}

TEST(Attention, SinkAndSoftcapByHand) {
  Tiny tiny({1}, {0, 0}, {8, 4});
  const HostTensor sinks = host(DType::f32, {1}, {std::log(2.0)});
  tiny.problem.sinks = sinks;
  Attention result = oracle::attention(tiny.problem);
  EXPECT_NEAR(result.out.values[0], 3.0, 1e-6);
  EXPECT_NEAR(result.lse.values[0], std::log(4.0), 1e-6);
  tiny.problem.sinks = {};
  const Tiny capped_tiny({1}, {100, 0}, {8, 4});
  AttentionProblem capped = capped_tiny.problem;
  capped.softcap = 1.0f;
  result = oracle::attention(capped);
  const double weight = std::exp(1.0);
  EXPECT_NEAR(result.out.values[0], (8 * weight + 4) / (weight + 1), 1e-6);
}

TEST(Attention, NoKeysGiveZerosAndTheSink) {
  Tiny tiny({1, 1}, {5}, {7});
  const HostTensor end = host(DType::i32, {1}, {0});
  tiny.problem.kv_end = end;
  Attention result = oracle::attention(tiny.problem);
  EXPECT_EQ(result.out.values, (std::vector<double>{0, 0}));
  EXPECT_EQ(result.lse.values[1], -kInfinity);
  const HostTensor sinks = host(DType::f32, {1}, {1.5});
  tiny.problem.sinks = sinks;
  result = oracle::attention(tiny.problem);
  EXPECT_EQ(result.out.values, (std::vector<double>{0, 0}));
  EXPECT_EQ(result.lse.values[0], 1.5);
}

/// Which keys each query sees, as a string of rows.
std::string sight(const AttentionProblem& problem) {
  std::string text;
  const Sequence s = sequence(problem, 0);
  for (std::int64_t i = 0; i < s.q_length; ++i) {
    for (std::int64_t j = 0; j < s.kv_length; ++j) text += visible(problem, 0, 0, i, j) ? '#' : '.';
    text += '|';
  }
  return text;
}

TEST(Attention, PositionsByHand) {
  Tiny tiny({1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1});
  AttentionProblem& p = tiny.problem;
  EXPECT_EQ(sight(p), "####|####|");
  p.causal = true;
  EXPECT_EQ(sight(p), "###.|####|");  // bottom-right
  const HostTensor zero = host(DType::i32, {1}, {0});
  p.q_position = zero;
  EXPECT_EQ(sight(p), "#...|##..|");  // top-left
  p.q_position = {};
  p.window_left = 1;
  EXPECT_EQ(sight(p), ".##.|..##|");
  p.causal = false;
  p.window_right = 0;
  EXPECT_EQ(sight(p), ".##.|..##|");
  p.window_left.reset();
  p.window_right = 1;
  EXPECT_EQ(sight(p), "####|####|");
  p.window_right.reset();
  const HostTensor three = host(DType::i64, {1}, {3}), one = host(DType::i64, {1}, {1});
  p.kv_end = three;
  p.kv_begin = one;
  p.causal = true;
  EXPECT_EQ(sight(p), ".#..|.##.|");  // bottom-right of the used keys
  p.kv_position = three;
  EXPECT_EQ(sight(p), ".#..|.##.|");  // the default follows the keys
  p.q_position = three;
  EXPECT_EQ(sight(p), "....|.#..|");
}

TEST(Attention, BlockMasksByHand) {
  Tiny tiny({1, 1, 1}, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1});
  AttentionProblem& p = tiny.problem;
  p.mask.block_q = 2;
  p.mask.block_kv = 2;
  const HostTensor counts = host(DType::i32, {1, 1, 2}, {1, 2});
  const HostTensor indices = host(DType::i32, {1, 1, 2, 2}, {1, -1, 2, 0});
  p.mask.full = {.counts = counts, .offsets = {}, .indices = indices};
  EXPECT_EQ(sight(p), "..##.|..##.|##..#|");
  const HostTensor offsets = host(DType::i32, {1, 1, 3}, {1, 2, 2});
  const HostTensor pool = host(DType::i32, {2}, {7, 0});
  p.mask.partial = {.counts = {}, .offsets = offsets, .indices = pool};
  EXPECT_EQ(sight(p), "####.|####.|##..#|");
  const HostTensor tiles = host(DType::i32, {2}, {9, 1});
  const HostTensor bits = host(DType::u8, {2, 2, 1}, {0, 0, 2, 1});
  p.mask.bit_tile = tiles;
  p.mask.bits = bits;
  EXPECT_EQ(sight(p), ".###.|#.##.|##..#|");
  p.causal = true;
  EXPECT_EQ(sight(p), ".##..|#.##.|##..#|");
}

TEST(Attention, PackedAndPagedEqualDense) {
  generate::AttentionOptions options;
  options.packed_q = options.packed_kv = options.paged = generate::Presence::never;
  options.dtype = DType::f32;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto c = generate::attention_case(seed, options);
    const AttentionProblem& dense = c->problem;
    const std::int64_t batch = dense.q.size(0), length = dense.k.size(1);
    const DenseArray expected = oracle::attention(dense).out;
    generate::Memory memory(c->random);
    // Packed: rows of the batch one after the other.
    std::vector<std::int64_t> offsets, ends;
    for (std::int64_t b = 0; b <= batch; ++b) offsets.push_back(b * length);
    AttentionProblem packed = dense;
    packed.kv_offsets = memory.list(DType::i64, {batch + 1}, offsets);
    const auto flattened = [&](const Tensor& tensor) {
      DenseArray array = read(tensor);
      array.shape = {array.shape[0] * array.shape[1], array.shape[2], array.shape[3]};
      const Tensor flat = memory.input(DType::f32, array.shape, generate::Layout::contiguous);
      write(flat, array);
      return flat;
    };
    packed.k = flattened(dense.k);
    packed.v = flattened(dense.v);
    packed.max_kv_length = length;
    EXPECT_EQ(oracle::attention(packed).out.values, expected.values) << c->text;
    // Pages of one key each, in reverse order.
    if (length == 0) continue;
    AttentionProblem paged = dense;
    std::vector<std::int64_t> table;
    for (std::int64_t n = 0; n < batch * length; ++n) table.push_back(batch * length - 1 - n);
    paged.page_table = memory.list(DType::i32, {batch, length}, table);
    if (!paged.kv_end) {
      ends.assign(static_cast<std::size_t>(batch), length);
      paged.kv_end = memory.list(DType::i32, {batch}, ends);
    }
    const auto pages = [&](const Tensor& tensor) {
      DenseArray array = read(tensor);
      DenseArray turned({batch * length, 1, array.shape[2], array.shape[3]});
      const std::int64_t row = array.shape[2] * array.shape[3];
      for (std::int64_t n = 0; n < batch * length; ++n) {
        std::copy_n(array.values.begin() + n * row, row,
                    turned.values.begin() + (batch * length - 1 - n) * row);
      }
      const Tensor pool = memory.input(DType::f32, turned.shape, generate::Layout::contiguous);
      write(pool, turned);
      return pool;
    };
    paged.k = pages(dense.k);
    paged.v = pages(dense.v);
    EXPECT_EQ(oracle::attention(paged).out.values, expected.values) << c->text;
  }
}

TEST(Attention, EmulationIsNearTheTruth) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto c = generate::attention_case(seed);
    const Attention truth = oracle::attention(c->problem),
                    emulated = attention_emulated(c->problem);
    const double allowed = c->problem.q.dtype == DType::f32   ? 1e-4
                           : c->problem.q.dtype == DType::f16 ? 0.02
                                                              : 0.15;
    for (std::size_t n = 0; n < truth.out.values.size(); ++n) {
      ASSERT_NEAR(truth.out.values[n], emulated.out.values[n], allowed) << c->text;
    }
  }
}

// ---- Gradients ---------------------------------------------------------------------------------

/// The function that the gradients derive: sum(out * dout) + sum(lse * dlse).
double objective(const AttentionBackwardProblem& problem) {
  const Attention result = oracle::attention(problem.forward);
  const DenseArray dout = read(problem.dout);
  const DenseArray dlse = problem.dlse ? read(problem.dlse) : DenseArray(result.lse.shape);
  double sum = 0;
  for (std::size_t n = 0; n < dout.values.size(); ++n) sum += dout.values[n] * result.out.values[n];
  for (std::size_t n = 0; n < dlse.values.size(); ++n) {
    if (std::isfinite(result.lse.values[n])) sum += dlse.values[n] * result.lse.values[n];
  }
  return sum;
}

TEST(Gradients, MatchFiniteDifferences) {
  generate::AttentionOptions options;
  options.dtype = DType::f32;
  options.longest = 9;
  options.layout = generate::Layout::contiguous;
  int checked = 0;
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    const auto c = generate::backward_case(seed, options);
    AttentionBackwardProblem problem = c->problem;
    HostTensor room(DType::f32, {1});
    const AttentionProblem& f = problem.forward;
    problem.dq = f.q;
    problem.dk = f.k;
    problem.dv = f.v;
    problem.dsinks = f.sinks;
    const AttentionGradients gradients = oracle::attention_backward(problem);
    const auto check = [&](const Tensor& tensor, const DenseArray& gradient, const char* name) {
      if (!tensor || tensor.numel() == 0) return;
      for (int trial = 0; trial < 4; ++trial) {
        const std::int64_t at = c->random.between(0, tensor.numel() - 1);
        DenseArray values = read(tensor);
        const double x = values.values[static_cast<std::size_t>(at)];
        const double derivative = gradient.values[static_cast<std::size_t>(at)];
        if (std::isnan(x)) {
          EXPECT_EQ(derivative, 0.0) << c->text << " " << name;
          continue;
        }
        const auto value_at = [&](double moved, double& exact) {
          values.values[static_cast<std::size_t>(at)] = moved;
          write(tensor, values);
          exact = read(tensor).values[static_cast<std::size_t>(at)];
          return objective(problem);
        };
        double high = 0, low = 0, same = 0;
        const double above = value_at(x + 1e-3, high), below = value_at(x - 1e-3, low);
        value_at(x, same);
        const double slope = (above - below) / (high - low);
        EXPECT_NEAR(derivative, slope, 1e-4 * (1 + std::fabs(slope))) << c->text << " " << name;
        ++checked;
      }
    };
    check(f.q, gradients.dq, "dq");
    check(f.k, gradients.dk, "dk");
    check(f.v, gradients.dv, "dv");
    if (f.sinks && f.sinks.dtype == DType::f32) check(f.sinks, gradients.dsinks, "dsinks");
  }
  EXPECT_GT(checked, 500);
}

TEST(Merging, PartsOfTheKeysGiveTheWhole) {
  const std::vector<double> keys{0.3, -1, 2, 0.5, 1}, values{1, 2, 3, -4, 5};
  Tiny whole({1, -2}, keys, values);
  const HostTensor sinks = host(DType::f32, {1}, {0.4});
  const HostTensor two = host(DType::i32, {1}, {2}), five = host(DType::i32, {1}, {5});
  AttentionProblem first = whole.problem, second = whole.problem;
  first.kv_end = two;
  second.kv_begin = two;
  const Attention part_a = oracle::attention(first), part_b = oracle::attention(second);
  HostTensor out_a(DType::f32, {1, 2, 1, 1}), out_b(DType::f32, {1, 2, 1, 1});
  HostTensor lse_a(DType::f32, {1, 1, 2}), lse_b(DType::f32, {1, 1, 2});
  write(out_a, part_a.out);
  write(out_b, part_b.out);
  write(lse_a, part_a.lse);
  write(lse_b, part_b.lse);
  whole.problem.sinks = sinks;
  const Attention expected = oracle::attention(whole.problem);
  MergeStatesProblem merge;
  merge.outs = {out_a, out_b};
  merge.lses = {lse_a, lse_b};
  merge.out = out_a;
  merge.sinks = sinks;
  const Merged merged = oracle::merge_states(merge);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_NEAR(merged.out.value.values[i], expected.out.values[i], 1e-6);
    EXPECT_NEAR(merged.lse.value.values[i], expected.lse.values[i], 1e-6);
  }
}

}  // namespace
}  // namespace tessera::oracle
