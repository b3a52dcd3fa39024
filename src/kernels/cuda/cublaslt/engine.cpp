#if __has_include(<cublasLt.h>)

#include "src/kernels/cuda/cublaslt/engine.hpp"

#include <array>
#include <bit>
#include <string>
#include <utility>
#include <variant>

#include <tessera/error.hpp>

#include "src/core/check.hpp"
#include "src/problem/blas_fp8.hpp"
#include "src/problem/describe.hpp"

namespace tessera::cuda::cublaslt {
namespace {

cudaDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

DType dtype_of(std::int64_t number) { return static_cast<DType>(number); }

bool computes_nothing(const planning::Call& call) {
  const auto& shape = std::get<planning::MatmulShape>(call.shape);
  return shape.m == 0 || shape.n == 0 || shape.batch == 0;
}

Product product_of(const planning::Call& call) {
  return cublaslt::product_of(std::get<MatmulProblem>(call.problem),
                              std::get<planning::MatmulShape>(call.shape),
                              call.planned.buffers.workspace);
}

// By their numbers, as toolkits before 12.9 do not name them.
constexpr auto kLeftScaleMode = static_cast<cublasLtMatmulDescAttributes_t>(31);
constexpr auto kRightScaleMode = static_cast<cublasLtMatmulDescAttributes_t>(32);
#if CUBLAS_VERSION >= 120900
static_assert(kLeftScaleMode == CUBLASLT_MATMUL_DESC_A_SCALE_MODE &&
              kRightScaleMode == CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
static_assert(static_cast<int>(planning::ScaleMode::per_line) ==
                  CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F &&
              static_cast<int>(planning::ScaleMode::per_128) ==
                  CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F &&
              static_cast<int>(planning::ScaleMode::per_128x128) ==
                  CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
#endif

/// fp32 stays fp32: by TF32 and by emulation it would be less.
cublasComputeType_t compute_type(DType dtype) {
  return dtype == DType::f32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
}

}  // namespace

std::size_t Engine::Hash::operator()(const Key& key) const {
  static_assert(sizeof(Key) % sizeof(std::uint64_t) == 0);
  std::uint64_t hash = 0;
  for (const std::uint64_t number :
       std::bit_cast<std::array<std::uint64_t, sizeof(Key) / sizeof(std::uint64_t)>>(key))
    hash = (hash ^ number) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

void Engine::check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::device, std::string(call) + ": " + lt_.status_name(status));
}

cublasLtHandle_t Engine::handle_of(std::int64_t device) {
  const std::lock_guard lock(making_);
  cublasLtHandle_t& handle = handles_[device];
  if (!handle) check(lt_.create(&handle), "cublasLtCreate");
  return handle;
}

cublasLtMatrixLayoutOpaque_t Engine::layout_of(const Matrix& matrix, const Key& key,
                                               DType dtype) const {
  cublasLtMatrixLayoutOpaque_t layout{};
  check(lt_.layout_init(&layout, sizeof layout, data_type(dtype),
                        static_cast<std::uint64_t>(matrix.rows),
                        static_cast<std::uint64_t>(matrix.cols), matrix.pitch),
        "cublasLtMatrixLayoutInit");
  if (key.batch == 1) return layout;
  const auto count = static_cast<std::int32_t>(key.batch);
  check(lt_.layout_set(&layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        "cublasLtMatrixLayoutSetAttribute(BATCH_COUNT)");
  check(lt_.layout_set(&layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &matrix.batch,
                       sizeof matrix.batch),
        "cublasLtMatrixLayoutSetAttribute(STRIDED_BATCH_OFFSET)");
  return layout;
}

void Engine::check_has_scale_modes() const {
  constexpr std::size_t kFirst = 120900;
  if (lt_.version() >= kFirst) return;
  throw Error(ErrorCode::unsupported,
              "run: cuBLASLt " + std::to_string(lt_.version()) +
                  " has no factors per line or block of FP8; 120900 and later have");
}

void Engine::describe(const Key& key, Prepared& prepared) const {
  const DType left = dtype_of(key.left_dtype), result = dtype_of(key.result);
  prepared.left = layout_of(key.left, key, left);
  prepared.right = layout_of(key.right, key, dtype_of(key.right_dtype));
  prepared.c = layout_of(key.c, key, result);
  prepared.out = layout_of(key.out, key, result);
  cublasLtMatmulDesc_t product = &prepared.product;
  check(lt_.desc_init(product, sizeof prepared.product, compute_type(left), CUDA_R_32F),
        "cublasLtMatmulDescInit");
  const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
    check(lt_.desc_set(product, which, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  };
  const auto operation = [](const Matrix& side) -> std::int32_t {
    return side.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, operation(key.left));
  set(CUBLASLT_MATMUL_DESC_TRANSB, operation(key.right));
  // The choice of an algorithm looks at addresses for their alignment: a bias and factors have this
  // one then, and a run sets their own.
  const void* const aligned = std::bit_cast<const void*>(std::uintptr_t{kMaxAlignment});
  if (core::is_fp8(left)) set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{0});
  if (key.left_scales != 0 || key.right_scales != 0) {
    check_has_scale_modes();
    set(kLeftScaleMode, static_cast<std::int32_t>(key.left_scales));
    set(kRightScaleMode, static_cast<std::int32_t>(key.right_scales));
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, aligned);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, aligned);
  }
  if (key.bias == 0) return;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_BIAS});
  set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
      static_cast<std::int32_t>(data_type(dtype_of(key.bias))));
  set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
  if (key.bias_batch != 0) set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, key.bias_batch);
}

std::shared_ptr<const Engine::Prepared> Engine::prepare(const Product& product,
                                                        const planning::Call& call) {
  const Key& key = product.key;
  auto prepared = std::make_shared<Prepared>();
  prepared->handle = handle_of(key.device);
  describe(key, *prepared);
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(lt_.preference_init(&preference, sizeof preference), "cublasLtMatmulPreferenceInit");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
    check(lt_.preference_set(&preference, which, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(key.workspace));
  // Shares of a split depth are added up in fp32 and in a fixed order; the other schemes round them
  // to the result's type. Before a bias of 16 bits is added, all of them do: no split then.
  const bool splits = key.bias == 0 || dtype_of(key.result) == DType::f32;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         std::uint32_t{splits ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                              : CUBLASLT_REDUCTION_SCHEME_NONE});
  const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t which, const Matrix& matrix) {
    prefer(which, static_cast<std::uint32_t>(matrix.alignment));
  };
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.left);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.right);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.c);
  aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status =
      lt_.heuristic(prepared->handle, &prepared->product, &prepared->left, &prepared->right,
                    &prepared->c, &prepared->out, &preference, 1, &found, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      (status == CUBLAS_STATUS_SUCCESS && (count == 0 || found.state != CUBLAS_STATUS_SUCCESS))) {
    throw Error(ErrorCode::unsupported,
                "run: cuBLASLt " + std::to_string(lt_.version()) + " has no algorithm for '" +
                    planning::describe(call.shape) + "': name another row in execution.kernel");
  }
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  prepared->algorithm = found.algo;
  prepared->workspace = found.workspaceSize;
  return prepared;
}

std::shared_ptr<const Engine::Prepared> Engine::find(const Product& product,
                                                     const planning::Call& call) {
  constexpr std::size_t kMaxKnown = 4096;
  {
    const std::shared_lock lock(reading_);
    const auto found = known_.find(product.key);
    if (found != known_.end()) return found->second;
  }
  const std::shared_ptr<void> allowed = allow();
  // Two threads may both ask: the library's answer depends on the key alone.
  std::shared_ptr<const Prepared> prepared = prepare(product, call);
  const std::unique_lock lock(reading_);
  if (known_.size() >= kMaxKnown) known_.clear();
  return known_.emplace(product.key, std::move(prepared)).first->second;
}

std::int64_t Engine::workspace(const planning::Call& call) {
  if (computes_nothing(call)) return 0;
  return static_cast<std::int64_t>(find(product_of(call), call)->workspace);
}

void Engine::run(const planning::Call& call) {
  if (computes_nothing(call)) return;
  const Product product = product_of(call);
  const std::shared_ptr<const Prepared> prepared = find(product, call);
  cublasLtMatmulDescOpaque_t own = prepared->product;
  const auto point = [&](cublasLtMatmulDescAttributes_t which, const void* to, const char* name) {
    if (to) check(lt_.desc_set(&own, which, &to, sizeof to), name);
  };
  point(CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias,
        "cublasLtMatmulDescSetAttribute(BIAS_POINTER)");
  point(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.left_scale,
        "cublasLtMatmulDescSetAttribute(A_SCALE_POINTER)");
  point(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.right_scale,
        "cublasLtMatmulDescSetAttribute(B_SCALE_POINTER)");
  // The library's parameters of descriptors and layouts are not const, but only read.
  const auto layout = [](const cublasLtMatrixLayoutOpaque_t& known) {
    return const_cast<cublasLtMatrixLayout_t>(&known);
  };
  const std::shared_ptr<void> allowed = prepared->has_run ? nullptr : allow();
  check(lt_.matmul(prepared->handle, &own, &product.alpha, product.left, layout(prepared->left),
                   product.right, layout(prepared->right), &product.beta, product.c,
                   layout(prepared->c), product.out, layout(prepared->out), &prepared->algorithm,
                   call.workspace, prepared->workspace, static_cast<cudaStream_t>(call.stream)),
        "cublasLtMatmul");
  prepared->has_run = true;
}

}  // namespace tessera::cuda::cublaslt

#endif
