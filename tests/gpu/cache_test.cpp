// quantize and append on a GPU against those in host memory, byte by byte.
#include <gtest/gtest.h>

#include <vector>

#include <tessera/tessera.hpp>

#include "tests/fixtures/caches.hpp"
#include "tests/gpu/graph.hpp"
#include "tests/gpu/twin.hpp"

namespace tessera {
namespace {

using caches::Appended;
using caches::Quantized;
using generate::Random;
using gpu_test::check;
using gpu_test::Graph;
using gpu_test::Twin;

constexpr std::size_t kTwinBytes = std::size_t{8} << 20;

Quantized on_device(const Twin& twin, Quantized q) {
  for (Tensor* t : {&q.x, &q.out, &q.scale}) *t = twin.on_device(*t);
  return q;
}
Appended on_device(const Twin& twin, Appended a) {
  PagedAppend& p = a.problem;
  for (Tensor* t : {&p.k, &p.v, &p.offsets, &p.k_cache, &p.v_cache, &p.page_table, &p.lengths,
                    &p.k_scale, &p.v_scale})
    *t = twin.on_device(*t);
  return a;
}

/// Checks that the GPU writes the same bytes as the CPU, and no others.
template <class Case>
void expect_equal(const Case& c, Twin& twin) {
  SCOPED_TRACE(c.text);
  twin.upload();
  caches::run(on_device(twin, c));
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  caches::run(c);
  const std::vector<std::byte> got = twin.download();
  std::size_t different = 0, first = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == twin.host()[i]) continue;
    if (different++ == 0) first = i;
  }
  ASSERT_EQ(different, 0u) << "bytes differ from the CPU's, the first at " << first;
}

TEST(Cache, GpuQuantizesAsTheCpu) {
  Random random(201);
  for (int round = 0; round < 200; ++round) {
    Twin twin(kTwinBytes);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    expect_equal(caches::Maker(random, carve).quantized(), twin);
    if (HasFatalFailure()) return;
  }
}

TEST(Cache, GpuAppendsAsTheCpu) {
  Random random(202);
  for (int round = 0; round < 200; ++round) {
    Twin twin(kTwinBytes);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    expect_equal(caches::Maker(random, carve).appended(), twin);
    if (HasFatalFailure()) return;
  }
}

/// Positions and pages out of range are skipped: with damaged lists nothing outside of the caches
/// changes, and valid sequences are written.
TEST(Cache, DamagedListsWriteNothingElsewhere) {
  Random random(203);
  for (int round = 0; round < 60; ++round) {
    Twin twin(kTwinBytes);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    caches::Maker maker(random, carve);
    Appended a = maker.appended();
    SCOPED_TRACE(a.text);
    PagedAppend& p = a.problem;
    const std::int64_t batch = p.lengths.size(0);
    auto* const table = static_cast<std::int32_t*>(p.page_table.data);
    for (std::int64_t i = 0; i < p.page_table.numel(); ++i)
      if (random.chance(0.5)) table[i] = random.pick({-1, -7, 1 << 30, 1 << 20, -(1 << 30)});
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t wild = random.pick<std::int64_t>({-1, -1000, 1 << 30, 3});
      if (p.lengths.dtype == DType::i64)
        static_cast<std::int64_t*>(p.lengths.data)[b] = wild;
      else
        static_cast<std::int32_t*>(p.lengths.data)[b] = static_cast<std::int32_t>(wild);
    }
    twin.upload();
    caches::run(on_device(twin, a));
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<std::byte> got = twin.download();
    for (const Tensor& cache : {p.k_cache, p.v_cache}) {  // everything but the caches
      const Tensor inner = twin.inside(cache, got);
      caches::for_each(cache, [&](std::int64_t at, const caches::Sizes&) {
        const auto size = size_of(cache.dtype);
        std::memcpy(static_cast<std::byte*>(inner.data) + at * size,
                    static_cast<const std::byte*>(cache.data) + at * size,
                    static_cast<std::size_t>(size));
      });
    }
    ASSERT_TRUE(got == twin.host()) << "bytes outside of the caches changed";
  }
}

/// Many rows, so that every warp has several, and factors that many thread blocks share.
TEST(Cache, LargeTensors) {
  for (const bool per_head : {false, true}) {
    Twin twin(std::size_t{192} << 20);
    Random random(204);
    constexpr std::int64_t kTokens = 40000, kHeads = 8, kDim = 128;
    Quantized q;
    q.text = per_head ? "per head" : "per tensor";
    const auto carve = [&](DType dtype, std::initializer_list<std::int64_t> shape) {
      std::int64_t n = 1;
      for (const std::int64_t size : shape) n *= size;
      return tensor(twin.carve(dtype, n), dtype, shape);
    };
    q.x = carve(DType::bf16, {kTokens, kHeads, kDim});
    q.out = carve(DType::e4m3, {kTokens, kHeads, kDim});
    q.scale = per_head ? carve(DType::f32, {kHeads}) : carve(DType::f32, {1});
    for (std::int64_t i = 0; i < q.x.numel(); ++i)
      store_from_float(q.x.data, DType::bf16, i, static_cast<float>(random.uniform() - 0.5));
    expect_equal(q, twin);
    if (HasFatalFailure()) return;
  }
}

TEST(Cache, CapturedCallsFollowTheContents) {
  Twin twin(std::size_t{64} << 20);  // with those that are drawn in vain
  Random random(205);
  const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
  caches::Maker maker(random, carve);
  Appended a = maker.appended();
  while (a.problem.offsets || a.problem.k.size(1) == 0) a = maker.appended();
  Quantized q = maker.quantized();
  while (q.scales != Scales::computed || q.x.numel() == 0) q = maker.quantized();
  twin.upload();
  const Appended device_a = on_device(twin, a);
  const Quantized device_q = on_device(twin, q);
  const Graph graph([&](void* stream) {
    caches::run(device_a, {.stream = stream});
    caches::run(device_q, {.stream = stream});
  });
  for (int round = 0; round < 3; ++round) {
    SCOPED_TRACE(round);
    for (std::int64_t b = 0; b < a.problem.lengths.size(0); ++b) {
      const std::int64_t capacity = a.problem.page_table.size(1) * a.problem.k_cache.size(1);
      const std::int64_t length = random.between(0, capacity - a.problem.k.size(1));
      if (a.problem.lengths.dtype == DType::i64)
        static_cast<std::int64_t*>(a.problem.lengths.data)[b] = length;
      else
        static_cast<std::int32_t*>(a.problem.lengths.data)[b] = static_cast<std::int32_t>(length);
    }
    caches::for_each(q.x, [&](std::int64_t at, const caches::Sizes&) {
      store_from_float(q.x.data, q.x.dtype, at, static_cast<float>(random.normal()));
    });
    twin.upload();
    graph.replay();
    caches::run(a);
    caches::run(q);
    ASSERT_TRUE(twin.download() == twin.host());
  }
}

}  // namespace
}  // namespace tessera
