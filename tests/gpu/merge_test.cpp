#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/twin.hpp"
#include "tests/support/compare.hpp"

namespace tessera {
namespace {

using gpu_test::Twin;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  std::int64_t parts = 2, batch = 2, length = 5, heads = 3, dim = 64;
  DType dtype = DType::f32, out = DType::f32;
  bool packed = false, sinks = false, in_place = false, lse = true;
  bool strided = false;  // heads before rows, padded rows, gaps between columns
};

/// A problem in host memory, and its copy on the GPU.
class Merge {
 public:
  explicit Merge(const Case& shape, unsigned seed = 1)
      : shape_(shape), twin_(bytes_of(shape)), random_(seed) {
    for (std::int64_t p = 0; p < shape.parts; ++p) {
      problem_.outs.push_back(values(shape.dtype));
      problem_.lses.push_back(log_sums());
      fill(problem_.outs.back());
      fill_lse(problem_.lses.back());
    }
    problem_.out = shape.in_place ? problem_.outs.back() : values(shape.out);
    if (shape.lse) problem_.lse = shape.in_place ? problem_.lses.back() : log_sums();
    if (shape.sinks) {
      problem_.sinks =
          tensor(twin_.carve(shape.dtype, 2 * shape.heads), shape.dtype, {shape.heads}, {2});
      fill(problem_.sinks);
    }
  }

  MergeStatesProblem& host() { return problem_; }

  /// Runs on the GPU and compares with the oracle. Returns all memory of the GPU.
  std::vector<std::byte> run(const Execution& execution) {
    const oracle::Merged expected = oracle::merge_states(problem_);
    twin_.upload();
    merge_states(on_device(), execution);
    gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    auto copy = twin_.download();
    MergeStatesProblem answer = problem_;
    answer.out = twin_.inside(problem_.out, copy);
    answer.lse = twin_.inside(problem_.lse, copy);
    const auto result = oracle::compare_merged(answer, expected);
    EXPECT_TRUE(result.ok) << result.message;
    return copy;
  }

  /// Runs the CPU backend in host memory and compares it with a result of the GPU: the same NaN and
  /// infinities, finite values within a few roundings, and no byte that only one of the two wrote.
  void compare_with_cpu(std::vector<std::byte>& answer) {
    const Tensor gpu_out = twin_.inside(problem_.out, answer);
    const Tensor gpu_lse = twin_.inside(problem_.lse, answer);
    merge_states(problem_);
    close(gpu_out, problem_.out);
    if (problem_.lse) close(gpu_lse, problem_.lse);
    copy_over(gpu_out, problem_.out);
    if (problem_.lse) copy_over(gpu_lse, problem_.lse);
    EXPECT_EQ(answer, twin_.host()) << "memory outside the outputs differs";
  }

  MergeStatesProblem on_device() const {
    MergeStatesProblem moved = problem_;
    for (Tensor& t : moved.outs) t = twin_.on_device(t);
    for (Tensor& t : moved.lses) t = twin_.on_device(t);
    moved.out = twin_.on_device(moved.out);
    moved.lse = twin_.on_device(moved.lse);
    moved.sinks = twin_.on_device(moved.sinks);
    return moved;
  }

 private:
  static std::size_t bytes_of(const Case& s) {
    const std::int64_t rows = (s.batch * s.length + 2) * (s.heads + 1);
    return static_cast<std::size_t>((s.parts + 2) * (rows * (s.dim * 2 + 8) + 64) * 4 + 4096);
  }

  Tensor values(DType dtype) {
    const std::int64_t b = shape_.batch, l = shape_.length, h = shape_.heads, d = shape_.dim;
    const std::int64_t column = shape_.strided ? 2 : 1;
    const std::int64_t line = d * column + (shape_.strided ? 5 : 0);
    void* data = twin_.carve(dtype, b * l * h * line + 1);
    if (shape_.packed) return tensor(data, dtype, {b * l, h, d}, {h * line, line, column});
    if (!shape_.strided) return tensor(data, dtype, {b, l, h, d});
    return tensor(data, dtype, {b, l, h, d}, {h * l * line, line, l * line, column});
  }

  Tensor log_sums() {
    const std::int64_t b = shape_.batch, l = shape_.length, h = shape_.heads;
    void* data = twin_.carve(DType::f32, b * l * h);
    if (shape_.packed) return tensor(data, DType::f32, {h, b * l}, {1, h});
    if (!shape_.strided) return tensor(data, DType::f32, {b, h, l});
    return tensor(data, DType::f32, {b, h, l}, {h * l, 1, h});
  }

  template <class Visit>
  static void each(const Tensor& t, const Visit& visit) {
    const std::int64_t count = t.numel();
    for (std::int64_t i = 0; i < count; ++i) {
      std::int64_t rest = i, at = 0;
      for (int dim = t.rank - 1; dim >= 0; --dim) {
        at += rest % t.size(dim) * t.stride(dim);
        rest /= t.size(dim);
      }
      visit(at);
    }
  }

  void fill(const Tensor& t) {
    std::normal_distribution<float> normal;
    each(t, [&](std::int64_t at) { store_from_float(t.data, t.dtype, at, normal(random_)); });
  }
  /// Values over many orders of magnitude; some parts are empty (-inf).
  void fill_lse(const Tensor& t) {
    std::uniform_real_distribution<float> uniform(-30.0f, 30.0f);
    each(t, [&](std::int64_t at) {
      const float value = uniform(random_);
      static_cast<float*>(t.data)[at] = value > 20.0f ? -kInf : value;
    });
  }

  static void close(const Tensor& a, const Tensor& b) {
    const float unit = a.dtype == DType::f32 ? 0x1p-20f : a.dtype == DType::f16 ? 0x1p-9f : 0x1p-6f;
    each(a, [&](std::int64_t at) {
      const float x = load_as_float(a.data, a.dtype, at), y = load_as_float(b.data, b.dtype, at);
      if (std::isfinite(x) && std::isfinite(y)) {
        EXPECT_LE(std::fabs(x - y), unit * (1.0f + std::fabs(y)));
      } else {
        EXPECT_TRUE(x == y || (std::isnan(x) && std::isnan(y))) << x << " and " << y;
      }
    });
  }
  static void copy_over(const Tensor& to, const Tensor& from) {
    const int bytes = size_of(to.dtype);
    each(to, [&](std::int64_t at) {
      std::memcpy(static_cast<char*>(to.data) + at * bytes,
                  static_cast<const char*>(from.data) + at * bytes,
                  static_cast<std::size_t>(bytes));
    });
  }

  Case shape_;
  Twin twin_;
  std::mt19937 random_;
  MergeStatesProblem problem_;
};

std::vector<Execution> executions() {
  std::vector<Execution> all(2);
  all[1].backend = Backend::sm80;
  if (device_facts({DeviceKind::cuda, 0}).compute_capability / 10 == 9) {
    all.push_back(all[1]);
    all.back().backend = Backend::sm90;
  }
  return all;
}

void expect_right(const Case& shape) {
  for (const Execution& execution : executions()) {
    Merge merge(shape);
    auto answer = merge.run(execution);
    merge.compare_with_cpu(answer);
  }
}

TEST(GpuMerge, EveryDtype) {
  for (DType in : {DType::f32, DType::f16, DType::bf16}) {
    for (DType out : {DType::f32, DType::f16, DType::bf16}) {
      SCOPED_TRACE(std::string(to_string(in)) + " to " + to_string(out));
      expect_right({.dtype = in, .out = out});
    }
  }
}

TEST(GpuMerge, OddSizes) {
  for (std::int64_t dim : {1, 2, 31, 33, 127, 128, 129, 257, 600}) {
    SCOPED_TRACE(dim);
    expect_right({.batch = 1, .length = 7, .heads = 3, .dim = dim, .dtype = DType::f16});
  }
  for (std::int64_t parts : {1, 2, 31, 32, 33, 64}) {
    SCOPED_TRACE(parts);
    expect_right({.parts = parts, .dim = 40});
  }
}

TEST(GpuMerge, StridesPackedAndNoLse) {
  for (DType dtype : {DType::f32, DType::bf16}) {
    expect_right({.dim = 33, .dtype = dtype, .strided = true});
    expect_right({.dim = 33, .dtype = dtype, .packed = true, .strided = true});
    expect_right({.dtype = dtype, .packed = true, .lse = false});
  }
}

TEST(GpuMerge, SinksAreAddedOnce) {
  expect_right({.parts = 1, .sinks = true});
  expect_right({.parts = 5, .dtype = DType::bf16, .out = DType::bf16, .sinks = true});
}

TEST(GpuMerge, InPlace) {
  expect_right({.in_place = true});
  expect_right(
      {.dtype = DType::f16, .out = DType::f16, .sinks = true, .in_place = true, .strided = true});
}

TEST(GpuMerge, EmptyPartsAreNeverRead) {
  Merge merge({.parts = 3, .batch = 1, .length = 4, .heads = 1, .dim = 8});
  auto& problem = merge.host();
  for (std::int64_t row = 0; row < 4; ++row) {
    for (std::size_t p = 0; p < 3; ++p) {
      static_cast<float*>(problem.lses[p].data)[row] = row < 2 || p == 1 ? -kInf : 1.0f;
    }
  }
  // Part 1 is empty in every row. In rows 0 and 1 all parts are empty.
  for (int i = 0; i < 4 * 8; ++i) static_cast<float*>(problem.outs[1].data)[i] = kNan;
  for (int i = 0; i < 2 * 8; ++i) static_cast<float*>(problem.outs[0].data)[i] = kNan;
  auto answer = merge.run({});
  merge.compare_with_cpu(answer);
  for (int row = 0; row < 2; ++row) {
    EXPECT_EQ(static_cast<float*>(problem.out.data)[row * 8], 0.0f);
    EXPECT_EQ(static_cast<float*>(problem.lse.data)[row], -kInf);
  }
}

TEST(GpuMerge, NanSpreadsWithinItsRow) {
  Merge merge({.parts = 2, .batch = 1, .length = 3, .heads = 1, .dim = 8});
  auto& problem = merge.host();
  for (auto& lse : problem.lses) {
    for (int row = 0; row < 3; ++row) static_cast<float*>(lse.data)[row] = 0.5f;
  }
  static_cast<float*>(problem.lses[0].data)[0] = kNan;
  static_cast<float*>(problem.outs[1].data)[1 * 8 + 2] = kNan;
  auto answer = merge.run({});
  merge.compare_with_cpu(answer);
  const float* out = static_cast<const float*>(problem.out.data);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1 * 8 + 2]));
  EXPECT_FALSE(std::isnan(out[1 * 8 + 3]));
  EXPECT_FALSE(std::isnan(out[2 * 8]));
}

TEST(GpuMerge, NothingToDo) {
  for (const Case& shape : {Case{.length = 0}, Case{.dim = 0}, Case{.heads = 0}}) {
    expect_right(shape);
  }
}

TEST(GpuMerge, SameBitsEveryTime) {
  Merge merge({.parts = 64, .length = 200, .dim = 128, .dtype = DType::bf16});
  const auto first = merge.run({});
  for (int i = 0; i < 10; ++i) EXPECT_EQ(merge.run({}), first);
}

TEST(GpuMerge, RunsOnTheCallersStream) {
  cudaStream_t stream = nullptr;
  gpu_test::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  Merge merge({});
  Execution execution;
  execution.stream = stream;
  merge.run(execution);
  gpu_test::check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST(GpuMerge, TooManyPartsAreRefused) {
  Merge merge({.parts = 65, .dim = 8});
  try {
    merge_states(merge.on_device());
    FAIL() << "65 parts were accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(error.what()).find("64"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera
