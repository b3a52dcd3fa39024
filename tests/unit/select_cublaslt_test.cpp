// Dense products by cuBLASLt: when it is chosen, what it refuses, and what is missing. Neither a
// GPU nor the library is needed.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <tessera/error.hpp>

#include "src/kernels/cuda/cublaslt/plan.hpp"
#include "src/kernels/families.hpp"
#include "src/problem/blas_rules.hpp"
#include "tests/unit/selecting.hpp"

namespace {

using namespace tessera;            // NOLINT: a test of many small names
using namespace tessera::planning;  // NOLINT

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr const char *kHalf = "sm80_cublaslt_f16_bf16", *kSingle = "sm80_cublaslt_f32";

Tensor shaped(std::initializer_list<std::int64_t> shape, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape, kGpu);
}
Tensor strided(std::initializer_list<std::int64_t> shape,
               std::initializer_list<std::int64_t> strides, DType dtype = DType::bf16) {
  return tensor(nullptr, dtype, shape, strides, kGpu);
}

MatmulProblem dense(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype = DType::bf16,
                    bool tb = false) {
  MatmulProblem p;
  p.a = shaped({m, k}, dtype), p.out = shaped({m, n}, dtype);
  p.b = tb ? transpose(shaped({n, k}, dtype)) : Operand(shaped({k, n}, dtype));
  return p;
}

std::string chosen(const MatmulProblem& problem, const char* device = "h100") {
  return choose(problem, device_preset(device)).kernel_name;
}

/// Why the row does not support a problem; one text.
std::string refused(const MatmulProblem& problem, const char* row = kHalf) {
  std::string all;
  for (const std::string& reason :
       rejections(row_named(row), shape_of(AnyProblem(problem)), device_preset("h100")))
    all += (all.empty() ? "" : "; ") + reason;
  return all;
}

TEST(SelectCublasLt, WinsWhereOurRowsAreKnownToBeSlower) {
  // H100, ours of cuBLASLt: .54, .58, .46, .38.
  EXPECT_EQ(chosen(dense(5000, 5000, 5000)), kHalf);
  EXPECT_EQ(chosen(dense(7296, 6296, 8280)), kHalf);
  EXPECT_EQ(chosen(dense(64, 64, 65536)), kHalf);
  EXPECT_EQ(chosen(dense(1, 10616, 1460, DType::bf16, true)), kHalf);
  EXPECT_EQ(chosen(dense(128, 8192, 8192)), kHalf);
  EXPECT_EQ(chosen(dense(8192, 128, 8192)), kHalf);
  // H200: .95 to .98; with 1 to 32 columns both are equal.
  for (const std::int64_t side : {64, 128}) {
    EXPECT_EQ(chosen(dense(side, 8192, 8192), "h200"), kHalf) << side;
    EXPECT_EQ(chosen(dense(8192, side, 8192), "h200"), kHalf) << side;
  }
  const Explanation e = select(dense(5000, 5000, 5000), device_preset("h100"));
  EXPECT_NE(to_text(e).find("chosen    sm80_cublaslt_f16_bf16"), std::string::npos) << to_text(e);
}

TEST(SelectCublasLt, LosesWhereOurRowsAreAhead) {
  for (const char* device : {"h100", "h200"}) {
    EXPECT_EQ(chosen(dense(8192, 8192, 8192), device), "sm90_matmul_m128_n256_k64_s4");
    // Operands that are not at multiples of 16 bytes: 3.3 times faster.
    EXPECT_EQ(chosen(dense(8191, 8191, 8191), device), "sm90_matmul_m128_n256_k64_s4");
  }
}

/// Shapes of the sweep in which our rows were .71 to .84 of the library's speed (H200, 2026-11-26):
/// depths whose lines are short, and one thread block with a long depth.
TEST(SelectCublasLt, IsChosenForShortLinesAndLoneThreadBlocks) {
  const auto linear = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return chosen(dense(m, n, k, DType::bf16, true), "h200");
  };
  EXPECT_EQ(linear(1669, 5920, 8), kHalf);
  EXPECT_EQ(linear(3421, 1864, 8), kHalf);
  EXPECT_EQ(linear(1504, 7808, 22), kHalf);
  EXPECT_EQ(linear(14, 8, 9880), kHalf);
  // The same, 2026-11-27: our row would copy 57 MB to aligned rows first.
  EXPECT_EQ(linear(5, 3968, 7231), kHalf);
}

TEST(SelectCublasLt, PredictsWhatWasMeasured) {
  // H100, CUDA 13.0, 2026-11-25: the faster and the slower of two states.
  const auto ms = [](const MatmulProblem& p) {
    return predict_ms(row_named(kHalf), shape_of(AnyProblem(p)), device_preset("h100"));
  };
  const auto near = [](double predicted, double fast, double slow) {
    EXPECT_GT(predicted, 0.85 * fast);
    EXPECT_LT(predicted, 1.15 * slow);
  };
  near(ms(dense(4096, 4096, 4096)), 0.1787, 0.2042);
  near(ms(dense(8192, 8192, 8192)), 1.413, 1.633);
  near(ms(dense(16384, 8192, 4096)), 1.371, 1.593);
  near(ms(dense(8191, 8191, 8191)), 6.900, 7.014);
}

TEST(SelectCublasLt, ServesEveryGpuSinceAmpereAndEveryFloatType) {
  for (const char* device : {"a100", "l4", "h100", "h200", "b200"}) {
    EXPECT_EQ(chosen(dense(300, 300, 300, DType::f32), device), kSingle) << device;
    Execution forced;
    forced.kernel = kHalf;
    for (const DType dtype : {DType::f16, DType::bf16})
      EXPECT_EQ(choose(dense(300, 300, 300, dtype), device_preset(device), forced).kernel_name,
                kHalf);
  }
  EXPECT_NE(chosen(dense(300, 300, 300, DType::f32), "cpu"), kSingle);
  MatmulProblem wide = dense(64, 64, 64);
  wide.out = shaped({64, 64}, DType::f32);
  EXPECT_EQ(refused(wide), "");
  wide.out = shaped({64, 64}, DType::f16);
  EXPECT_EQ(refused(wide), "out: dtype f16 is not supported (supported: f32, bf16)");
  MatmulProblem narrow = dense(64, 64, 64, DType::f32);
  narrow.out = shaped({64, 64}, DType::f16);
  EXPECT_EQ(refused(narrow, kSingle), "out: dtype f16 is not supported (supported: f32)");
  const Explanation single = select(dense(64, 64, 64, DType::f32), device_preset("h100"));
  EXPECT_NE(to_text(single).find("in fp32, not TF32"), std::string::npos) << to_text(single);
}

TEST(SelectCublasLt, WorkspaceFollowsFromTheDevice) {
  const auto bytes = [](std::int64_t k, const char* device) {
    Execution forced;
    forced.kernel = kHalf;
    return choose(dense(100, 100, k), device_preset(device), forced).workspace_bytes;
  };
  EXPECT_EQ(bytes(4096, "h100"), 32 << 20);
  EXPECT_EQ(bytes(16, "h100"), 32 << 20);  // the library splits short depths too
  EXPECT_EQ(bytes(4096, "a100"), 8 << 20);
}

TEST(SelectCublasLt, RefusesWithReasons) {
  const auto with = [](const auto& change) {
    MatmulProblem p = dense(64, 96, 32);
    change(p);
    return refused(p);
  };
  EXPECT_EQ(with([](MatmulProblem&) {}), "");
  const char* lines = ": expected contiguous rows or columns that do not overlap";
  EXPECT_EQ(with([](auto& p) { p.a = strided({64, 32}, {66, 2}); }), std::string("a") + lines);
  EXPECT_EQ(with([](auto& p) { p.b = strided({32, 96}, {8, 1}); }), std::string("b") + lines);
  EXPECT_EQ(with([](auto& p) { p.out = strided({64, 96}, {200, 2}); }), std::string("out") + lines);
  EXPECT_EQ(with([](auto& p) { p.a = strided({64, 32}, {0, 1}); }), std::string("a") + lines);
  EXPECT_EQ(with([](auto& p) { p.epilogue.activation = Activation::relu; }),
            "epilogue.activation is not supported");
  EXPECT_EQ(with([](auto& p) { p.epilogue.alpha = 0; }), "epilogue.alpha of 0 is not supported");
  EXPECT_EQ(with([](auto& p) {
              p.a = shaped({64, 0}), p.b = shaped({0, 96});
            }),
            "a product without depth (k of 0) is not supported");

  const char* other_c =
      "epilogue.beta: expected an f32 result, and c of out's dtype, contiguous along the same "
      "dimension";
  const auto with_c = [&](const Tensor& c, float beta, DType out = DType::f32) {
    return with([&](auto& p) {
      p.out = shaped({64, 96}, out);
      p.epilogue.beta = beta, p.epilogue.c = c;
    });
  };
  EXPECT_EQ(with_c({}, 1), "");  // what out holds
  EXPECT_EQ(with_c(shaped({64, 96}, DType::f32), 1), "");
  EXPECT_EQ(with_c(shaped({64, 96}), 1), other_c);
  EXPECT_EQ(with_c(strided({64, 96}, {1, 64}), 1), other_c);
  EXPECT_EQ(with_c({}, 1, DType::bf16), other_c) << "rounded twice";
  EXPECT_EQ(with_c(shaped({64, 96}), 1, DType::bf16), other_c);
  EXPECT_EQ(with_c(shaped({64, 96}, DType::f32), 0), "");  // not read

  const auto with_bias = [&](const Tensor& bias, BiasAxis axis, bool columns = false) {
    return with([&](auto& p) {
      p.epilogue.bias = bias, p.epilogue.bias_axis = axis;
      if (columns) p.out = strided({64, 96}, {1, 64});
    });
  };
  EXPECT_EQ(with_bias(shaped({96}), BiasAxis::column), "");
  EXPECT_EQ(with_bias(shaped({64}), BiasAxis::row, true), "");
  for (const std::string& reason :
       {with_bias(shaped({64}), BiasAxis::row), with_bias(shaped({96}), BiasAxis::column, true),
        with_bias(shaped({96}, DType::f32), BiasAxis::column),
        with_bias(strided({96}, {2}), BiasAxis::column),
        with_bias(tensor(reinterpret_cast<void*>(0x1002), DType::bf16, {96}, kGpu),
                  BiasAxis::column)})
    EXPECT_EQ(
        reason.find("epilogue.bias: expected out's dtype (beside FP8 and an f32 result: bf16), "
                    "contiguous and at multiples"),
        0u)
        << reason;

  MatmulProblem groups;
  groups.a = shaped({1000, 512}), groups.b = shaped({8, 512, 256});
  groups.out = shaped({1000, 256});
  groups.group_offsets = shaped({9}, DType::i32);
  EXPECT_EQ(refused(groups), "group_offsets is not supported");
  MatmulProblem sparse;
  sparse.a =
      BsrMatrix{shaped({3, 64, 64}), shaped({3}, DType::i32), shaped({3}, DType::i32), 128, 128};
  sparse.b = shaped({128, 64}), sparse.out = shaped({128, 64});
  EXPECT_EQ(refused(sparse), "a sparse operand is not supported");
  EXPECT_EQ(refused(dense(1, 1, 1, DType::f32)),
            "a: dtype f32 is not supported (supported: f16, bf16)");
  MatmulProblem many = dense(8, 8, 8);
  many.a = shaped({70000, 8, 8}), many.b = shaped({70000, 8, 8}), many.out = shaped({70000, 8, 8});
  EXPECT_EQ(refused(many), "matrices of a batch: expected at most 65535, got 70000");
}

TEST(SelectCublasLt, PlansOfOtherRowsServeEveryEpilogue) {
  const MatmulProblem plain = dense(64, 96, 32);
  MatmulProblem silu = plain;
  silu.epilogue.activation = Activation::silu;
  // Where there is no GPU, `run` refuses later than by the plan.
  const auto refusal = [&](const char* row) -> std::string {
    Execution forced;
    forced.kernel = row;
    const Plan made = choose(plain, device_preset("h100"), forced);
    try {
      run(made, silu, {});
    } catch (const Error& error) {
      return error.what();
    }
    return {};
  };
  EXPECT_NE(refusal(kHalf).find("plan again"), std::string::npos);
  EXPECT_EQ(refusal("sm90_skinny_m256_n64_k64_s24").find("plan again"), std::string::npos);
}

TEST(SelectCublasLt, PlansKnowWhatExcludesABlas) {
  const MatmulProblem plain = dense(64, 96, 32);
  MatmulProblem silu = plain, bias = plain;
  silu.epilogue.activation = Activation::silu;
  bias.epilogue.bias = shaped({96});
  const AnyShape one = shape_of(AnyProblem(plain)), other = shape_of(AnyProblem(silu));
  EXPECT_FALSE(one == other);
  EXPECT_EQ(one, shape_of(AnyProblem(bias)));
  EXPECT_EQ(describe(one).find("activation"), std::string::npos);
  EXPECT_NE(describe(other).find("activation"), std::string::npos);
  // Shapes on a CPU that ask about a GPU.
  MatmulProblem here = silu;
  for (Tensor* t : {&here.a.dense, &here.b.dense, &here.out}) t->device = {};
  EXPECT_NE(chosen(here), kHalf);
  // A CPU's plans serve every epilogue.
  for (MatmulProblem p : {plain, silu}) {
    for (Tensor* t : {&p.a.dense, &p.b.dense, &p.out}) t->device = {};
    EXPECT_EQ(std::get<MatmulShape>(shape_of(AnyProblem(p))).blas, BlasLimit::none);
  }
}

// ---- A process without the library -------------------------------------------------------------

const char* absent() { return "cuBLASLt was not found: test"; }
const char* present() { return nullptr; }

/// All families as a build with the GPU backends has them.
std::vector<KernelFamily> built(const char* (*missing)()) {
  const auto known = all_families();
  std::vector<KernelFamily> families(known.begin(), known.end());
  for (KernelFamily& family : families) {
    family.launch = [](const Call&) {};
    if (family.name == "sm80_cublaslt") family.missing = missing;
  }
  return families;
}

Request to_run(const MatmulProblem& problem, const char* kernel = "") {
  return {
      .shape = shape_of(AnyProblem(problem)), .device = device_preset("h100"), .kernel = kernel};
}

TEST(SelectCublasLt, OtherRowsAreChosenWhereTheLibraryIsMissing) {
  const auto with = built(present), without = built(absent);
  const MatmulProblem problem = dense(5000, 5000, 5000);
  EXPECT_EQ(choose(with, to_run(problem))->row->name, std::string(kHalf));
  EXPECT_EQ(choose(without, to_run(problem))->row->name,
            std::string("sm90_matmul_m128_n256_k64_s4"));
  const std::string text = to_text(explain(without, to_run(problem)));
  EXPECT_NE(text.find("cuBLASLt was not found: test"), std::string::npos) << text;
  // Shapes alone: what this machine has does not matter.
  Request shapes = to_run(problem);
  shapes.will_run = false;
  EXPECT_EQ(choose(without, shapes)->row->name, std::string(kHalf));
}

TEST(SelectCublasLt, AForcedRowDoesNotFallBack) {
  const auto without = built(absent);
  for (const auto& [problem, row] :
       {std::pair(dense(64, 64, 64), kHalf), std::pair(dense(64, 64, 64, DType::f32), kSingle)}) {
    try {
      choose(without, to_run(problem, row));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported);
      EXPECT_NE(std::string(error.what()).find("cuBLASLt was not found: test"), std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(choose(without, to_run(dense(64, 64, 64, DType::f32))), Error);
}

TEST(SelectCublasLt, TheLibraryIsNotLookedForWhereItCannotRun) {
  static int asked = 0;
  const auto families = built([]() -> const char* {
    ++asked;
    return nullptr;
  });
  MatmulProblem sparse;
  sparse.a =
      BsrMatrix{shaped({3, 64, 64}), shaped({3}, DType::i32), shaped({3}, DType::i32), 128, 128};
  sparse.b = shaped({128, 64}), sparse.out = shaped({128, 64});
  choose(families, to_run(sparse));
  EXPECT_EQ(asked, 0);
  choose(families, to_run(dense(64, 64, 64)));
  EXPECT_GT(asked, 0);
}

}  // namespace
