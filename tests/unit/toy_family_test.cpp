// A kernel family that only this test has: everything that a new family needs, through plan,
// explain and run.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tessera/error.hpp>

#include "src/core/check.hpp"
#include "src/kernels/families.hpp"
#include "src/select/select.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

constexpr KernelRow kRows[] = {{.name = "cpu_toy_m1_n1_k8",
                                .tile = {.m = 1, .n = 1, .k = 8},
                                .dtypes = core::dtypes({DType::f32}),
                                .why = "shows what a family is",
                                .measured = ""},
                               {.name = "cpu_toy_m1_n1_k64",
                                .tile = {.m = 1, .n = 1, .k = 64},
                                .dtypes = core::dtypes({DType::f32}),
                                .why = "depths of up to 64",
                                .measured = ""}};

/// Products of dense matrices whose depth is at most the row's.
struct Toy {
  using Shape = MatmulShape;
  struct Layout {
    std::int64_t results = 0;
  };
  static void refuse(const Shape& s, const KernelRow& row, const DeviceFacts&, Reasons& reasons) {
    reasons.unless_at_most("k", s.k, row.tile.k);
    if (s.a.sparse || s.b.sparse) reasons.unsupported("a sparse operand");
  }
  static Layout layout(const Shape& s, const KernelRow&, const DeviceFacts&, Reasons& reasons) {
    reasons.unless_at_most("results", s.m * s.n, 1000);
    return {s.m * s.n};
  }
  static double seconds(const Shape&, const Layout& at, const KernelRow& row, const DeviceFacts&) {
    return 1e-9 * static_cast<double>(at.results) * row.tile.k;
  }
  static BufferSizes buffers(const Shape&, const Layout& at, const KernelRow&, int) {
    return {4 * at.results, 0};
  }
  static std::string describe(const Shape&, const Layout& at) {
    return "; " + std::to_string(at.results) + " results";
  }
};

/// Uses its workspace, so that the test sees that there is one.
void launch_toy(const Call& call) {
  const auto& problem = std::get<MatmulProblem>(call.problem);
  const auto& s = std::get<MatmulShape>(call.shape);
  auto* sums = static_cast<float*>(call.workspace);
  const auto element = [](const Tensor& t, std::int64_t i, std::int64_t j) -> float& {
    return static_cast<float*>(t.data)[i * t.stride(0) + j * t.stride(1)];
  };
  for (std::int64_t r = 0; r < call.planned.layout.get<Toy::Layout>().results; ++r) {
    sums[r] = 0;
    for (std::int64_t k = 0; k < s.k; ++k)
      sums[r] += element(problem.a.dense, r / s.n, k) * element(problem.b.dense, k, r % s.n);
    element(problem.out, r / s.n, r % s.n) = sums[r];
  }
}

std::vector<KernelFamily> with_toy() {
  const auto known = all_families();
  std::vector<KernelFamily> families(known.begin(), known.end());
  families.push_back(make_family<Toy>("cpu_toy", Backend::cpu, Op::matmul, kRows));
  families.back().launch = launch_toy;
  return families;
}

MatmulProblem product(float* a, float* b, float* out, std::int64_t k) {
  MatmulProblem p;
  p.a = tensor(a, DType::f32, {2, k}), p.b = tensor(b, DType::f32, {k, 2});
  p.out = tensor(out, DType::f32, {2, 2});
  return p;
}

TEST(ToyFamily, IsPlannedExplainedAndRun) {
  const std::vector<KernelFamily> families = with_toy();
  float a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8}, out[4] = {};
  const AnyProblem problem = product(a, b, out, 2);
  const Request request = Request::of(problem, device_preset("cpu"), {});

  // Only the toy family can be launched here.
  const auto planned = choose(families, request);
  EXPECT_EQ(planned->row, &kRows[0]);
  EXPECT_EQ(planned->layout.get<Toy::Layout>().results, 4);
  EXPECT_EQ(planned->buffers, (BufferSizes{16, 0}));
  const Plan plan = public_plan(families, planned);
  EXPECT_EQ(plan.kernel_name, "cpu_toy_m1_n1_k8");
  EXPECT_EQ(plan.workspace_bytes, 16);

  const std::string text = to_text(explain(families, request));
  EXPECT_NE(text.find("because   shows what a family is; 4 results\n"), std::string::npos) << text;
  EXPECT_NE(text.find("accepted  cpu_toy_m1_n1_k64"), std::string::npos) << text;

  float workspace[4];
  planned->family->launch({*planned, problem, request.shape, workspace});
  EXPECT_EQ((std::vector<float>(out, out + 4)), (std::vector<float>{19, 22, 43, 50}));
}

TEST(ToyFamily, RefusesWithItsReasons) {
  const std::vector<KernelFamily> families = with_toy();
  const auto explained = [&](const MatmulProblem& p) {
    return to_text(explain(families, Request::of(p, device_preset("cpu"), {})));
  };
  std::vector<float> memory(1000);
  float* data = memory.data();
  MatmulProblem deep = product(data, data, data, 20);
  EXPECT_NE(explained(deep).find("rejected  cpu_toy"), std::string::npos) << explained(deep);
  EXPECT_NE(explained(deep).find("1 of 2 rows: k: expected at most 8, got 20"), std::string::npos)
      << explained(deep);
  MatmulProblem large = product(data, data, data, 2);
  large.a = tensor(nullptr, DType::f32, {40, 2}), large.b = tensor(nullptr, DType::f32, {2, 40});
  large.out = tensor(nullptr, DType::f32, {40, 40});
  EXPECT_NE(explained(large).find("results: expected at most 1000, got 1600"), std::string::npos)
      << explained(large);
}

}  // namespace
