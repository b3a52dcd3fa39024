// When a product is planned with dense copies of its block-sparse operands.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include <tessera/error.hpp>

#include "src/kernels/families.hpp"
#include "src/problem/expand.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape, kGpu);
}

BsrMatrix bsr(std::int64_t rows, std::int64_t cols, std::int64_t block, double density,
              DType dtype = DType::bf16) {
  const auto stored = static_cast<std::int64_t>(density * static_cast<double>(rows / block) *
                                                static_cast<double>(cols / block));
  return {shaped({stored, block, block}, dtype), shaped({rows / block + 1}, DType::i32),
          shaped({stored}, DType::i32), rows, cols};
}

/// x [m, k] times the transpose of a sparse w [n, k].
MatmulProblem linear(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t block,
                     double density, DType dtype = DType::bf16) {
  MatmulProblem p;
  p.a = shaped({m, k}, dtype), p.b = transpose(bsr(n, k, block, density, dtype));
  p.out = shaped({m, n}, dtype);
  return p;
}

Plan planned(const MatmulProblem& problem, std::int64_t limit = kNoLimit,
             const std::string& kernel = {}) {
  return choose(problem, device_preset("h100"), {.kernel = kernel, .expand_bytes = limit});
}

TEST(SelectExpand, ManyTokensOfSmallBlocksUseTheDenseProduct) {
  const MatmulProblem problem = linear(233, 5648, 13440, 16, 0.5);
  constexpr std::int64_t kBytes = std::int64_t{5648} * 13440 * 2;
  const Plan given = planned(problem, kBytes - 1), expanded = planned(problem, kBytes);
  EXPECT_EQ(given.expanded_bytes, 0);
  EXPECT_EQ(expanded.expanded_bytes, kBytes);
  EXPECT_EQ(expanded.schedule_bytes, kBytes) << "a GPU's schedule has no mark";
  EXPECT_EQ(expanded.kernel_name, "sm80_cublaslt_f16_bf16");
  EXPECT_LT(expanded.predicted_ms, given.predicted_ms);
  EXPECT_EQ(expanded.signature, given.signature);
  EXPECT_EQ(expanded.planned->expansion.b, Order::rows);
  EXPECT_EQ(planned(problem, 0).kernel_name, given.kernel_name);
  const std::string text =
      to_text(select(problem, device_preset("h100"), {.expand_bytes = kBytes}));
  EXPECT_NE(text.find("  a sparse operand is not supported\n"), std::string::npos) << text;
}

TEST(SelectExpand, FewTokensAndLowDensityUseTheStoredBlocks) {
  EXPECT_EQ(planned(linear(1, 8192, 8192, 64, 0.2)).expanded_bytes, 0);
  EXPECT_EQ(planned(linear(4096, 8192, 8192, 128, 0.1)).expanded_bytes, 0);
}

/// The library takes more of the host's time than our rows, so a copy that saves little is no gain.
TEST(SelectExpand, ACopyHasToSaveMoreThanHalfAMicrosecond) {
  int copies = 0, refused = 0;
  for (std::int64_t tokens = 8; tokens <= 1024; tokens += 8)
    for (double density : {0.1, 0.2, 0.3, 0.5}) {
      const MatmulProblem problem = linear(tokens, 1024, 1024, 32, density);
      MatmulProblem dense = problem;
      dense.b = transpose(shaped({1024, 1024}));
      const double given = planned(problem, 0).predicted_ms, copied = planned(dense).predicted_ms;
      const bool expanded = planned(problem).expanded_bytes > 0;
      EXPECT_EQ(expanded, copied < given - 0.6e-3) << tokens << " tokens, density " << density;
      copies += expanded;
      refused += !expanded && copied < given;
    }
  EXPECT_GT(copies, 10);
  EXPECT_GT(refused, 10);
}

TEST(SelectExpand, AnEpilogueThatABlasLacksIsLeftToOurKernels) {
  MatmulProblem problem = linear(233, 5648, 13440, 16, 0.5);
  problem.epilogue.activation = Activation::gelu;
  const Plan plan = planned(problem);
  EXPECT_GT(plan.expanded_bytes, 0);
  EXPECT_NE(plan.planned->family->name, "sm80_cublaslt");
  EXPECT_EQ(std::get<MatmulShape>(plan.planned->dense->shape).blas, BlasLimit::activation);
}

TEST(SelectExpand, ProductsWithoutABsrKernelMayBeExpanded) {
  const MatmulProblem odd = linear(64, 240, 240, 24, 0.5);
  EXPECT_THROW(planned(odd, 0), Error);
  EXPECT_GT(planned(odd).expanded_bytes, 0);
  EXPECT_GT(planned(linear(64, 256, 256, 16, 0.5, DType::f32)).expanded_bytes, 0);

  MatmulProblem both = linear(256, 256, 256, 32, 0.5);
  both.a = bsr(256, 256, 16, 0.5);
  EXPECT_THROW(planned(both, 0), Error);
  const Expansion expansion = planned(both).planned->expansion;
  EXPECT_TRUE(expansion.a || expansion.b);
}

TEST(SelectExpand, GroupsOfRowsMayBeExpanded) {
  MatmulProblem problem;
  problem.a = shaped({4096, 1024});
  problem.b = bsr(1024, 1024, 8, 0.5);  // no grouped kernel walks these blocks
  problem.b.sparse.row_offsets = shaped({8, 129}, DType::i32);
  problem.out = shaped({4096, 1024});
  problem.group_offsets = shaped({9}, DType::i32);
  EXPECT_THROW(planned(problem, 0), Error);
  EXPECT_EQ(planned(problem).expanded_bytes, 8 * 1024 * 1024 * 2);
}

TEST(SelectExpand, CopiesThatGroupedKernelsCannotAddressAreNotMade) {
  const std::string row = "sm80_product_m128_n256_k64_s3";
  const auto groups = [](std::int64_t count) {
    MatmulProblem problem;
    problem.a = shaped({4096, 32768});
    problem.b = bsr(32768, 32768, 8, 0.001);
    problem.b.sparse.row_offsets = shaped({count, 4097}, DType::i32);
    problem.out = shaped({4096, 32768});
    problem.group_offsets = shaped({count + 1}, DType::i32);
    return problem;
  };
  EXPECT_EQ(planned(groups(16), kNoLimit, row).expanded_bytes, std::int64_t{32} << 30);
  EXPECT_THROW(planned(groups(64), kNoLimit, row), Error);
}

TEST(SelectExpand, BlocksThatNoConversionCopiesAreNotExpanded) {
  EXPECT_TRUE(expansions_of(shape_of(linear(64, 8192, 8192, 4096, 0.5))).empty());
  EXPECT_EQ(expansions_of(shape_of(linear(64, 8192, 8192, 2048, 0.5))).size(), 2u);
  EXPECT_TRUE(expansions_of(shape_of([] {
                MatmulProblem p;
                p.a = shaped({8, 8}), p.b = shaped({8, 8}), p.out = shaped({8, 8});
                return p;
              }()))
                  .empty());
}

TEST(SelectExpand, OrdersOfACopyAreThoseOfADenseTensor) {
  for (const bool transposed : {false, true}) {
    MatmulProblem sparse, dense;
    sparse.a = bsr(48, 80, 16, 0.5), dense.a = shaped({48, 80});
    sparse.a.transposed = dense.a.transposed = transposed;
    sparse.b = dense.b = shaped({transposed ? 48 : 80, 8});
    sparse.out = dense.out = shaped({transposed ? 80 : 48, 8});
    const MatmulShape shape = shape_of(sparse);
    for (const Order order : {Order::rows, Order::columns}) {
      if (order == Order::columns)
        dense.a.dense = tensor(nullptr, DType::bf16, {48, 80}, {1, 48}, kGpu);
      const Expansion expansion{.a = order};
      const MatmulProblem expanded = expanded_problem(sparse, shape, expansion);
      EXPECT_EQ(expanded.a.dense.strides, dense.a.dense.strides);
      EXPECT_EQ(expanded_shape(expanded, shape, expansion), shape_of(dense));
      EXPECT_EQ(shape_of(expanded), shape_of(dense));
    }
  }
}

TEST(SelectExpand, ANamedRowRunsEitherProduct) {
  const MatmulProblem small = linear(233, 5648, 13440, 16, 0.5);
  EXPECT_GT(planned(small, kNoLimit, "sm80_cublaslt_f16_bf16").expanded_bytes, 0);
  EXPECT_EQ(planned(small, kNoLimit, "sm90_bsr_m64_n64_k64_s4").expanded_bytes, 0);
  EXPECT_THROW(planned(small, 0, "sm80_cublaslt_f16_bf16"), Error);
  EXPECT_THROW(planned(small, kNoLimit, "sm80_cublaslt_f32"), Error);
  const Explanation e = select(small, device_preset("h100"),
                               {.kernel = "sm80_cublaslt_f16_bf16", .expand_bytes = kNoLimit});
  EXPECT_TRUE(e.supported);
  EXPECT_EQ(e.chosen_by, ChosenBy::execution);
  EXPECT_EQ(e.candidates.front().expanded_bytes, e.plan.expanded_bytes);
}

TEST(SelectExpand, ExplainAgreesWithThePlan) {
  for (const std::int64_t m : {1, 16, 64, 200, 1000, 5000}) {
    for (const std::int64_t block : {16, 64, 128}) {
      for (const double density : {0.05, 0.3, 0.9}) {
        const MatmulProblem problem = linear(m, 2048, 1024, block, density);
        const Execution execution{.expand_bytes = kNoLimit};
        const Explanation e = select(problem, device_preset("h100"), execution);
        const Plan plan = choose(problem, device_preset("h100"), execution);
        EXPECT_EQ(e.plan.kernel_name, plan.kernel_name);
        EXPECT_EQ(e.plan.expanded_bytes, plan.expanded_bytes);
        EXPECT_EQ(e.candidates.front().kernel, plan.kernel_name);
        EXPECT_EQ(e.candidates.front().expanded_bytes, plan.expanded_bytes);
        for (const Candidate& c : e.candidates) {
          if (c.reasons.empty()) {
            EXPECT_LE(plan.predicted_ms, c.predicted_ms) << c.kernel;
          }
        }
        EXPECT_LE(plan.predicted_ms, planned(problem, 0).predicted_ms);
      }
    }
  }
}

}  // namespace
