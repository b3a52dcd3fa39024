// quantize and append in host memory against brute force, and what they refuse.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/fixtures/caches.hpp"
#include "tests/fixtures/refusals.hpp"
#include "tests/support/oracle.hpp"

namespace tessera {
namespace {

using caches::Appended;
using caches::Quantized;
using caches::Sizes;
using generate::Random;
using testing::refuses;

/// Memory in one piece, so that writes outside of outputs show.
class Block {
 public:
  void* operator()(DType dtype, std::int64_t elements) {
    const auto size = static_cast<std::size_t>(size_of(dtype));
    used_ = (used_ / size + 3) * size;
    void* piece = bytes.data() + used_;
    used_ += static_cast<std::size_t>(elements) * size;
    if (used_ > bytes.size()) throw std::runtime_error("the block is too small for this test");
    return piece;
  }
  std::vector<std::byte> bytes = std::vector<std::byte>(std::size_t{8} << 20, std::byte{0xA5});

 private:
  std::size_t used_ = 0;
};

/// The same tensor inside a copy of the block.
Tensor inside(Tensor t, const Block& block, std::vector<std::byte>& copy) {
  t.data = copy.data() + (static_cast<std::byte*>(t.data) - block.bytes.data());
  return t;
}

float narrowed(float value, float scale, DType dtype = DType::e4m3) {
  const double quotient =
      scale != 0 ? static_cast<double>(value / scale) : static_cast<double>(value) * 0;
  if (std::isnan(quotient)) return std::nanf("");
  if (std::isinf(value) && dtype == DType::e5m2) return static_cast<float>(quotient);
  const double limit = oracle::largest(dtype);
  const double rounded = std::isinf(quotient) ? quotient : oracle::round_to(dtype, quotient);
  return static_cast<float>(std::clamp(rounded, -limit, limit));
}

/// Where the factor of an element lies.
std::int64_t factor_at(const Quantized& q, const Sizes& index) {
  const Tensor &x = q.x, &scale = q.scale;
  if (scale.rank == 1 && scale.size(0) == 1) return 0;
  const auto last = static_cast<std::size_t>(x.rank - 1);
  if (scale.rank == x.rank) {
    std::int64_t at = 0;
    for (int d = 0; d < x.rank; ++d) {
      const std::int64_t i = index[static_cast<std::size_t>(d)], count = scale.size(d);
      at += (count == 1 ? 0 : count == x.size(d) ? i : i / 128) * scale.stride(d);
    }
    return at;
  }
  const std::int64_t head = index[last - 1], token = index[last - 2];
  const bool by_outer = x.rank == 4 && scale.rank > 1;
  std::int64_t at = head * scale.stride(by_outer ? 1 : 0);
  if (by_outer) at += index[0] * scale.stride(0);
  if (scale.rank == 1 || (x.rank == 4 && scale.rank == 2)) return at;
  const int rows = scale.rank - 1;
  const std::int64_t length = x.size(x.rank - 3);
  const bool fine = scale.size(rows) != (length + 127) / 128;
  return at + token / (fine ? 64 : 128) * scale.stride(rows);
}

std::int64_t cache_factor_at(const Tensor& scale, std::int64_t page, std::int64_t head) {
  const std::int64_t h = scale.size(scale.rank - 1) == 1 ? 0 : head;
  return (scale.rank == 2 ? page * scale.stride(0) : 0) + h * scale.stride(scale.rank - 1);
}

void expect_element(const Tensor& t, std::int64_t at, float want) {
  const float got = load_as_float(t.data, t.dtype, at);
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << got;
  } else {
    ASSERT_EQ(got, want);
  }
}

void expect_quantized(const Quantized& q) {
  const auto value = [&](std::int64_t at) { return load_as_float(q.x.data, q.x.dtype, at); };
  const auto* factors = static_cast<const float*>(q.scale.data);
  const float top = q.out.dtype == DType::e4m3 ? 448.0f : 57344.0f;
  std::map<std::int64_t, float> largest;
  std::vector<float> wanted;
  caches::for_each(q.x, [&](std::int64_t at, const Sizes& index) {
    const std::int64_t factor = factor_at(q, index);
    float& most = largest[factor];
    if (std::isfinite(value(at))) most = std::max(most, std::fabs(value(at)));
    wanted.push_back(narrowed(value(at), factors[factor], q.out.dtype));
  });
  if (q.scales == Scales::computed) {
    caches::for_each(q.scale, [&](std::int64_t at, const Sizes&) {
      const float factor = std::max(largest[at] / top, std::numeric_limits<float>::min());
      ASSERT_EQ(factors[at], largest[at] == 0 ? 1.0f : factor);
    });
  }
  std::size_t n = 0;
  caches::for_each(q.out,
                   [&](std::int64_t at, const Sizes&) { expect_element(q.out, at, wanted[n++]); });
}

TEST(Quantize, MatchesBruteForceAndWritesNothingElse) {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    Block block;
    const auto carve = [&](DType dtype, std::int64_t n) { return block(dtype, n); };
    const Quantized q = caches::Maker(random, carve).quantized();
    SCOPED_TRACE(q.text);
    std::vector<std::byte> before = block.bytes;
    caches::run(q, {.threads = round % 3});
    expect_quantized(q);
    if (HasFatalFailure()) return;
    // Puts back what was written: everything else is as it was.
    std::vector<Tensor> outputs = {q.out};
    if (q.scales == Scales::computed) outputs.push_back(q.scale);
    for (const Tensor& t : outputs)
      caches::for_each(t, [&](std::int64_t at, const Sizes&) {
        const auto size = static_cast<std::size_t>(size_of(t.dtype));
        std::memcpy(static_cast<std::byte*>(t.data) + at * size_of(t.dtype),
                    static_cast<std::byte*>(inside(t, block, before).data) + at * size_of(t.dtype),
                    size);
      });
    ASSERT_TRUE(block.bytes == before);
  }
}

std::int64_t entry(const Tensor& list, std::int64_t at) {
  return list.dtype == DType::i64 ? static_cast<const std::int64_t*>(list.data)[at]
                                  : static_cast<const std::int32_t*>(list.data)[at];
}

/// Writes what `append` should write, element by element.
void append_slowly(const PagedAppend& p) {
  const std::int64_t page = p.k_cache.size(1), batch = p.lengths.size(0);
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t first = p.offsets ? entry(p.offsets, b) : 0;
    const std::int64_t count = p.offsets ? entry(p.offsets, b + 1) - first : p.k.size(1);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t position = entry(p.lengths, b) + i;
      const std::int64_t to = entry(p.page_table, b * p.page_table.stride(0) + position / page);
      const auto put = [&](const Tensor& from, const Tensor& cache, const Tensor& scale) {
        for (std::int64_t h = 0; h < cache.size(2); ++h) {
          for (std::int64_t d = 0; d < cache.size(3); ++d) {
            const int rank = from.rank;
            const std::int64_t at = (p.offsets ? (first + i) * from.stride(0)
                                               : b * from.stride(0) + i * from.stride(1)) +
                                    h * from.stride(rank - 2) + d * from.stride(rank - 1);
            const float value = load_as_float(from.data, from.dtype, at);
            const float factor =
                scale ? static_cast<const float*>(scale.data)[cache_factor_at(scale, to, h)] : 1.0f;
            store_from_float(cache.data, cache.dtype,
                             to * cache.stride(0) + position % page * cache.stride(1) +
                                 h * cache.stride(2) + d * cache.stride(3),
                             cache.dtype == DType::e4m3 ? narrowed(value, factor) : value);
          }
        }
      };
      put(p.k, p.k_cache, p.k_scale);
      put(p.v, p.v_cache, p.v_scale);
    }
  }
}

TEST(Append, MatchesBruteForceAndWritesNothingElse) {
  Random random(12);
  for (int round = 0; round < 300; ++round) {
    Block block;
    const auto carve = [&](DType dtype, std::int64_t n) { return block(dtype, n); };
    const Appended a = caches::Maker(random, carve).appended();
    SCOPED_TRACE(a.text);
    const std::vector<std::byte> before = block.bytes;
    append_slowly(a.problem);
    const std::vector<std::byte> wanted = block.bytes;
    block.bytes = before;
    caches::run(a, {.threads = round % 3});
    ASSERT_TRUE(block.bytes == wanted);
  }
}

/// What was appended is what attention over the pages sees.
TEST(Append, AttentionReadsWhatWasAppended) {
  constexpr std::int64_t kPages = 6, kPage = 4, kHeads = 2, kDim = 16, kLength = 9;
  Random random(3);
  HostTensor k(DType::f32, {1, kLength, kHeads, kDim}), v(DType::f32, {1, kLength, kHeads, kDim});
  HostTensor q(DType::f32, {1, 3, 2 * kHeads, kDim});
  for (const HostTensor* t : {&k, &v, &q})
    for (std::int64_t i = 0; i < t->view().numel(); ++i)
      store_from_float(t->view().data, DType::f32, i, static_cast<float>(random.normal()));
  HostTensor k_cache(DType::e4m3, {kPages, kPage, kHeads, kDim});
  HostTensor v_cache(DType::e4m3, {kPages, kPage, kHeads, kDim});
  std::int32_t table[] = {5, 0, 3}, lengths[] = {0}, ends[] = {kLength};
  float k_scale[] = {0.01f, 0.02f}, v_scale[] = {0.015f};
  PagedAppend problem;
  problem.k = k.view(), problem.v = v.view();
  problem.k_cache = k_cache.view(), problem.v_cache = v_cache.view();
  problem.page_table = tensor(table, DType::i32, {1, 3});
  problem.lengths = tensor(lengths, DType::i32, {1});
  problem.k_scale = tensor(k_scale, DType::f32, {kHeads});
  problem.v_scale = tensor(v_scale, DType::f32, {1});
  append(problem);
  HostTensor out(DType::f32, {1, 3, 2 * kHeads, kDim});
  AttentionProblem paged;
  paged.q = q.view(), paged.out = out.view();
  paged.k = k_cache.view(), paged.v = v_cache.view();
  paged.page_table = problem.page_table;
  paged.kv_end = tensor(ends, DType::i32, {1});
  paged.k_scale = problem.k_scale, paged.v_scale = problem.v_scale;
  paged.causal = true;
  attention(paged);
  // The same keys, narrowed and widened by hand, in one piece.
  HostTensor want(DType::f32, {1, 3, 2 * kHeads, kDim});
  for (std::int64_t i = 0; i < kLength * kHeads * kDim; ++i) {
    auto *const key = static_cast<float*>(k.view().data) + i, *const value = static_cast<float*>(
                                                                                 v.view().data) +
                                                                             i;
    const float factor = k_scale[i / kDim % kHeads];
    *key = narrowed(*key, factor) * factor;
    *value = narrowed(*value, v_scale[0]) * v_scale[0];
  }
  AttentionProblem dense = paged;
  dense.k = k.view(), dense.v = v.view(), dense.out = want.view();
  dense.page_table = dense.kv_end = dense.k_scale = dense.v_scale = {};
  attention(dense);
  for (std::int64_t i = 0; i < out.view().numel(); ++i)
    ASSERT_NEAR(static_cast<const float*>(out.view().data)[i],
                static_cast<const float*>(want.view().data)[i], 1e-5f);
}

/// What the contract says of values that FP8 does not have.
TEST(Quantize, SpecialValuesAndFactors) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float kNan = std::nanf("");
  const float x[] = {1e9f, -1e9f, kInfinity, -kInfinity, kNan, 2.0f, 0.0f};
  constexpr std::int64_t kCount = 7;
  const auto run = [&](DType dtype, float factor) {
    std::uint8_t codes[kCount];
    quantize(tensor(x, DType::f32, {1, kCount}), tensor(codes, dtype, {1, kCount}),
             tensor(&factor, DType::f32, {1}), Scales::given);
    std::vector<float> values;
    for (std::int64_t i = 0; i < kCount; ++i) values.push_back(load_as_float(codes, dtype, i));
    return values;
  };
  const auto expect = [](const std::vector<float>& got, const std::vector<float>& want) {
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::isnan(want[i]))
        EXPECT_TRUE(std::isnan(got[i])) << i;
      else
        EXPECT_EQ(got[i], want[i]) << i;
    }
  };
  expect(run(DType::e4m3, 1), {448, -448, 448, -448, kNan, 2, 0});
  expect(run(DType::e5m2, 1), {57344, -57344, kInfinity, -kInfinity, kNan, 2, 0});
  for (const DType dtype : {DType::e4m3, DType::e5m2}) {
    const float top = dtype == DType::e4m3 ? 448 : 57344;
    expect(run(dtype, 0), {0, -0.0f, kNan, kNan, kNan, 0, 0});
    expect(run(dtype, kNan), std::vector<float>(kCount, kNan));
    expect(run(dtype, 1e-42f), {top, -top, dtype == DType::e4m3 ? top : kInfinity,
                                dtype == DType::e4m3 ? -top : -kInfinity, kNan, top, 0});
    expect(run(dtype, 1e38f), {0, 0, dtype == DType::e4m3 ? top : kInfinity,
                               dtype == DType::e4m3 ? -top : -kInfinity, kNan, 0, 0});
  }
}

// ---- Refusals ----------------------------------------------------------------------------------

struct ToQuantize {
  HostTensor x{DType::f16, {2, 3, 4, 8}}, out{DType::e4m3, {2, 3, 4, 8}}, scale{DType::f32, {2, 4}};
  Tensor x_view = x.view(), out_view = out.view(), scale_view = scale.view();
  void run() const { quantize(x_view, out_view, scale_view); }
};

TEST(Quantize, RefusesByName) {
  refuses<ToQuantize>("quantize: x: expected dtype f32, f16 or bf16, got e4m3",
                      [](auto& c) { c.x_view.dtype = DType::e4m3; });
  refuses<ToQuantize>("quantize: out: expected dtype e4m3 or e5m2, got u8",
                      [](auto& c) { c.out_view.dtype = DType::u8; });
  refuses<ToQuantize>("quantize: out: expected the shape of x, f16[2, 3, 4, 8] on cpu",
                      [](auto& c) { c.out_view.shape[1] = 2; });
  refuses<ToQuantize>(
      "quantize: scale: expected [1], [4] (heads), [2, 4], [2, 4, 1 or 1] (64 or 128 rows of a "
      "head), or factors of matrices, of x's rank",
      [](auto& c) { c.scale_view.shape[0] = 1; });
  refuses<ToQuantize>("quantize: scale: expected dtype f32, got i32",
                      [](auto& c) { c.scale_view.dtype = DType::i32; });
  refuses<ToQuantize>("quantize: x: expected rank 2 to 4", [](auto& c) { c.x_view.rank = 1; });
  refuses<ToQuantize>("quantize: out: expected", [](auto& c) { c.out_view.data = nullptr; });
  refuses<ToQuantize>(
      "quantize: scale: expected [1] or [2, 3, 1, 1] (all), [2, 3, 4, 1] (rows), [2, 3, 1, 8] "
      "(columns), [2, 3, 4, 1] or [2, 3, 1, 8] (128 of a row or column) or [2, 3, 1, 1] (128 x "
      "128)",
      [](auto& c) {
        c.scale_view.rank = 4;
        c.scale_view.shape = {2, 3, 4, 8};
        c.scale_view.strides = {0, 0, 0, 0};
      });
}

struct ToAppend {
  HostTensor k{DType::f32, {2, 3, 2, 8}}, v{DType::f32, {2, 3, 2, 4}};
  HostTensor k_cache{DType::e4m3, {5, 4, 2, 8}}, v_cache{DType::e4m3, {5, 4, 2, 4}};
  HostTensor k_scale{DType::f32, {5, 2}};
  std::vector<std::int32_t> table = {0, 1, 4, 3}, lengths = {5, 0};
  PagedAppend problem = [this] {
    PagedAppend p;
    p.k = k.view(), p.v = v.view(), p.k_cache = k_cache.view(), p.v_cache = v_cache.view();
    p.page_table = tensor(table.data(), DType::i32, {2, 2});
    p.lengths = tensor(lengths.data(), DType::i32, {2});
    p.k_scale = k_scale.view();
    return p;
  }();
  void run() const { append(problem); }
};

TEST(Append, RefusesByName) {
  ToAppend().run();
  refuses<ToAppend>(
      "append: lengths: expected 0 to 5, so that the 3 new keys fit into the page "
      "table, got 6 for sequence 0",
      [](auto& c) { c.lengths[0] = 6; });
  refuses<ToAppend>("append: lengths: expected 0 to 5", [](auto& c) { c.lengths[1] = -1; });
  refuses<ToAppend>("append: page_table: expected pages in [0, 5), got 5 for page 1 of sequence 0",
                    [](auto& c) { c.table[1] = 5; });
  refuses<ToAppend>("append: page_table: expected pages in [0, 5), got -1 for page 0 of sequence 1",
                    [](auto& c) { c.table[2] = -1; });
  refuses<ToAppend>("append: v: expected shape", [](auto& c) { c.problem.v.shape[1] = 2; });
  refuses<ToAppend>("append: v: expected dtype f32 as k has, got f16",
                    [](auto& c) { c.problem.v.dtype = DType::f16; });
  refuses<ToAppend>("append: k_cache: expected shape [pages, page, kv_heads = 2, dim = 8]",
                    [](auto& c) { c.problem.k_cache.shape[3] = 7; });
  refuses<ToAppend>("append: v_cache: expected dtype e4m3 as k_cache has",
                    [](auto& c) { c.problem.v_cache.dtype = DType::f32; });
  refuses<ToAppend>("append: k_scale: expected shape [pages = 5, kv_heads = 2]",
                    [](auto& c) { c.problem.k_scale.shape[0] = 4; });
  refuses<ToAppend>("append: lengths: expected", [](auto& c) { c.problem.lengths.shape[0] = 1; });
  refuses<ToAppend>("append: page_table: expected dtype i32",
                    [](auto& c) { c.problem.page_table.dtype = DType::i64; });
  refuses<ToAppend>("append: k: expected shape",
                    [](auto& c) { c.problem.offsets = c.problem.lengths; });
  refuses<ToAppend>("append: k: expected", [](auto& c) { c.problem.k = c.problem.k_cache; });
}

}  // namespace
}  // namespace tessera
