#pragma once

#include <cublasLt.h>
#include <dlfcn.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <tessera/host_tensor.hpp>

#include "src/kernels/cuda/cublaslt/engine.hpp"
#include "src/kernels/cuda/cublaslt/library.hpp"

// In cuBLASLt's place: functions that keep what descriptors say, and multiply on the CPU as they
// say it. They may also read the descriptors of the real library, which needs no GPU to make them.
namespace tessera::fake_lt {

using cuda::cublaslt::Functions;

/// A descriptor's attributes.
struct Layout {
  std::int32_t type = -1, batch = 1;
  std::uint64_t rows = 0, cols = 0;
  std::int64_t pitch = 0, stride = 0;
};
struct Desc {
  std::int32_t compute = -1, scale = -1, left = CUBLAS_OP_N, right = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::int32_t bias_type = -1;
  const void* bias = nullptr;
  std::int64_t bias_stride = 0;
  std::int8_t fast = 0;
  std::int32_t left_mode = 0, right_mode = 0;
  const float *left_scale = nullptr, *right_scale = nullptr;
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t align_left = 256, align_right = 256, align_c = 256, align_out = 256;
};
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Desc) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

/// How descriptors are read: as the fake keeps them, or through the real library.
struct Readers {
  decltype(&cublasLtMatrixLayoutGetAttribute) layout = nullptr;
  decltype(&cublasLtMatmulDescGetAttribute) desc = nullptr;
  decltype(&cublasLtMatmulPreferenceGetAttribute) preference = nullptr;
  explicit operator bool() const { return layout && desc && preference; }
};

/// What a heuristic was asked.
struct Query {
  Desc desc;
  Layout left, right, c, out;
  Preference preference;
};

struct State {
  Readers readers;  // empty: the fake's own descriptors
  std::mutex mutex;
  std::vector<Query> queries;
  std::atomic<int> handles{0}, products{0};
  bool has_algorithm = true;
  std::size_t version = 130100;
  std::uint64_t unused = 0;  // bytes of the workspace that algorithms leave
  std::string fault;         // the first thing that the real library would not accept
};
inline State& state() {
  static State one;
  return one;
}
inline void expect(bool right, const char* what) {
  const std::lock_guard lock(state().mutex);
  if (!right && state().fault.empty()) state().fault = what;
}

template <class Kept, class Opaque>
Kept kept(const Opaque* from) {
  Kept value;
  std::memcpy(static_cast<void*>(&value), from, sizeof value);
  return value;
}
template <class Kept, class Opaque>
void keep(Opaque* to, const Kept& value) {
  std::memcpy(to, &value, sizeof value);
}

template <class T, class Get, class From, class Which>
void get(Get function, From from, Which which, T& value) {
  std::size_t written = 0;
  expect(function(from, which, &value, sizeof value, &written) == CUBLAS_STATUS_SUCCESS,
         "an attribute of the real library can't be read");
}

inline Layout read(cublasLtMatrixLayout_t from) {
  const auto function = state().readers.layout;
  if (!function) return kept<Layout>(from);
  Layout l;
  std::int32_t order = -1;
  get(function, from, CUBLASLT_MATRIX_LAYOUT_TYPE, l.type);
  get(function, from, CUBLASLT_MATRIX_LAYOUT_ORDER, order);
  get(function, from, CUBLASLT_MATRIX_LAYOUT_ROWS, l.rows);
  get(function, from, CUBLASLT_MATRIX_LAYOUT_COLS, l.cols);
  get(function, from, CUBLASLT_MATRIX_LAYOUT_LD, l.pitch);
  get(function, from, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, l.batch);
  get(function, from, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, l.stride);
  expect(order == CUBLASLT_ORDER_COL, "a layout is not column-major");
  return l;
}
inline Desc read(cublasLtMatmulDesc_t from) {
  const auto function = state().readers.desc;
  if (!function) return kept<Desc>(from);
  Desc d;
  get(function, from, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE, d.compute);
  get(function, from, CUBLASLT_MATMUL_DESC_SCALE_TYPE, d.scale);
  get(function, from, CUBLASLT_MATMUL_DESC_TRANSA, d.left);
  get(function, from, CUBLASLT_MATMUL_DESC_TRANSB, d.right);
  get(function, from, CUBLASLT_MATMUL_DESC_EPILOGUE, d.epilogue);
  get(function, from, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, d.bias_type);
  get(function, from, CUBLASLT_MATMUL_DESC_BIAS_POINTER, d.bias);
  get(function, from, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, d.bias_stride);
  get(function, from, CUBLASLT_MATMUL_DESC_FAST_ACCUM, d.fast);
  get(function, from, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, d.left_mode);
  get(function, from, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, d.right_mode);
  get(function, from, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, d.left_scale);
  get(function, from, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, d.right_scale);
  return d;
}
inline Preference read(cublasLtMatmulPreference_t from) {
  const auto function = state().readers.preference;
  if (!function) return kept<Preference>(from);
  Preference p;
  get(function, from, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, p.workspace);
  get(function, from, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, p.reduction);
  get(function, from, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.align_left);
  get(function, from, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.align_right);
  get(function, from, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.align_c);
  get(function, from, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.align_out);
  return p;
}

/// Sets one attribute of the fake's own descriptors.
template <class T>
cublasStatus_t set(T& to, const void* from, std::size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t layout_init(cublasLtMatrixLayout_t to, std::size_t size, cudaDataType type,
                                  std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  if (size < sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
  keep(to, Layout{.type = type, .rows = rows, .cols = cols, .pitch = ld});
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t layout_set(cublasLtMatrixLayout_t to, cublasLtMatrixLayoutAttribute_t which,
                                 const void* from, std::size_t bytes) {
  Layout l = kept<Layout>(to);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) status = set(l.batch, from, bytes);
  if (which == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) status = set(l.stride, from, bytes);
  keep(to, l);
  return status;
}
inline cublasStatus_t desc_init(cublasLtMatmulDesc_t to, std::size_t size,
                                cublasComputeType_t compute, cudaDataType_t scale) {
  if (size < sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
  keep(to, Desc{.compute = compute, .scale = scale});
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t desc_set(cublasLtMatmulDesc_t to, cublasLtMatmulDescAttributes_t which,
                               const void* from, std::size_t bytes) {
  Desc d = kept<Desc>(to);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  if (which == CUBLASLT_MATMUL_DESC_TRANSA) status = set(d.left, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_TRANSB) status = set(d.right, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_EPILOGUE) status = set(d.epilogue, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) status = set(d.bias_type, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER) status = set(d.bias, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE) status = set(d.bias_stride, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_FAST_ACCUM) status = set(d.fast, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_A_SCALE_MODE) status = set(d.left_mode, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_B_SCALE_MODE) status = set(d.right_mode, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) status = set(d.left_scale, from, bytes);
  if (which == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) status = set(d.right_scale, from, bytes);
  keep(to, d);
  return status;
}
inline cublasStatus_t preference_init(cublasLtMatmulPreference_t to, std::size_t size) {
  if (size < sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
  keep(to, Preference{});
  return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t preference_set(cublasLtMatmulPreference_t to,
                                     cublasLtMatmulPreferenceAttributes_t which, const void* from,
                                     std::size_t bytes) {
  Preference p = kept<Preference>(to);
  cublasStatus_t status = CUBLAS_STATUS_INVALID_VALUE;
  if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) status = set(p.workspace, from, bytes);
  if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) status = set(p.reduction, from, bytes);
  if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) status = set(p.align_left, from, bytes);
  if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) status = set(p.align_right, from, bytes);
  if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES) status = set(p.align_c, from, bytes);
  if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) status = set(p.align_out, from, bytes);
  keep(to, p);
  return status;
}

inline cublasStatus_t create(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(static_cast<std::uintptr_t>(++state().handles));
  return CUBLAS_STATUS_SUCCESS;
}
inline std::size_t version() { return state().version; }
inline const char* status_name(cublasStatus_t) { return "CUBLAS_STATUS_OF_THE_FAKE"; }

inline DType dtype_of(std::int32_t type) {
  switch (type) {
    case CUDA_R_16F:
      return DType::f16;
    case CUDA_R_16BF:
      return DType::bf16;
    case CUDA_R_8F_E4M3:
      return DType::e4m3;
    case CUDA_R_8F_E5M2:
      return DType::e5m2;
    default:
      return DType::f32;
  }
}
inline bool is_fp8(std::int32_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

/// What the documentation says of products in FP8.
inline void expect_valid_fp8(const Desc& d, const Layout& a, const Layout& b, const Layout& out) {
  expect(is_fp8(b.type) && !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2),
         "FP8 types that are not supported together");
  expect(d.left == CUBLAS_OP_T && d.right == CUBLAS_OP_N, "FP8 in another layout than TN");
  expect(a.pitch % 16 == 0 && b.pitch % 16 == 0 && a.rows % 16 == 0 && out.rows % 16 == 0 &&
             out.pitch * size_of(dtype_of(out.type)) % 16 == 0,
         "FP8 in sizes that are not multiples of 16 bytes");
  expect(d.fast == 0, "fast accumulation");
  constexpr std::int32_t kOne = 0, kLine = 3, k128 = 4, kBlock = 5;
  const std::pair modes(d.left_mode, d.right_mode);
  const bool blocks = d.left_mode >= k128 && d.right_mode >= k128;
  expect(modes == std::pair(kOne, kOne) || modes == std::pair(kLine, kLine) ||
             (blocks && modes != std::pair(kBlock, kBlock)),
         "modes of factors that are not supported together");
  if (d.left_mode != kOne) {
    expect(d.left_scale && d.right_scale, "no factors in a mode that has them");
    expect(out.batch == 1, "factors per line or block of a batch");
  }
  if (blocks) expect(out.rows % 4 == 0 && out.cols % 4 == 0, "sizes that are not multiples of 4");
}

/// The factor of line i at depth x, by the documented layouts.
inline float factor(const float* scale, std::int32_t mode, std::int64_t i, std::int64_t x,
                    std::int64_t lines, std::int64_t depth) {
  const std::int64_t blocks = (depth + 127) / 128;
  if (!scale) return 1;
  if (mode == 3) return scale[i];
  if (mode == 4) return scale[x / 128 * lines + i];
  if (mode == 5) return scale[i / 128 * ((blocks + 3) / 4 * 4) + x / 128];
  return scale[0];
}

/// What cuBLASLt's documentation says of types, sizes and pitches.
inline void expect_valid(const Desc& d, const Layout& a, const Layout& b, const Layout& c,
                         const Layout& out) {
  for (const Layout* l : {&a, &b, &c, &out}) {
    expect(l->rows > 0 && l->cols > 0, "a matrix is empty");
    expect(l->pitch >= static_cast<std::int64_t>(l->rows), "a pitch is less than the rows");
    expect(l->batch == out.batch && l->batch >= 1, "batches differ");
  }
  const auto op = [](const Layout& l, std::int32_t t) {
    return t == CUBLAS_OP_T ? std::pair(l.cols, l.rows) : std::pair(l.rows, l.cols);
  };
  const auto [m, k] = op(a, d.left);
  const auto [depth, n] = op(b, d.right);
  expect(m == out.rows && n == out.cols && k == depth, "the sizes of a product do not match");
  expect(c.rows == out.rows && c.cols == out.cols && c.type == out.type, "c differs from out");
  if (is_fp8(a.type))
    expect_valid_fp8(d, a, b, out);
  else
    expect(a.type == b.type && (out.type == a.type || out.type == CUDA_R_32F),
           "types that are not supported");
  expect(d.scale == CUDA_R_32F, "alpha and beta are not f32");
  expect(d.compute == (a.type == CUDA_R_32F ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F),
         "another arithmetic than fp32");
  if (d.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    expect(d.epilogue == CUBLASLT_EPILOGUE_BIAS, "an epilogue that is not supported");
    const auto wanted = is_fp8(a.type) && out.type == CUDA_R_32F ? CUDA_R_16BF : out.type;
    expect(d.bias_type == wanted && d.bias != nullptr, "a bias of another type, or none");
  }
}

inline cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t out,
                                cublasLtMatmulPreference_t preference, int wanted,
                                cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = 0;
  expect(handle && wanted >= 1, "a heuristic without a handle or room");
  const Query query{read(desc), read(a), read(b), read(c), read(out), read(preference)};
  expect_valid(query.desc, query.left, query.right, query.c, query.out);
  if (!state().has_algorithm) return CUBLAS_STATUS_NOT_SUPPORTED;
  const std::lock_guard lock(state().mutex);
  state().queries.push_back(query);
  results[0] = {};
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].workspaceSize = query.preference.workspace - state().unused;
  // The algorithm of this very question.
  results[0].algo.data[0] = out->data[0] + 1;
  results[0].algo.data[1] = query.out.rows * 1000003 + query.out.cols;
  results[0].algo.data[2] = results[0].workspaceSize;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                             const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                             cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                             cublasLtMatrixLayout_t c_layout, void* out,
                             cublasLtMatrixLayout_t out_layout, const cublasLtMatmulAlgo_t* algo,
                             void* workspace, std::size_t bytes, cudaStream_t) {
  const Desc d = read(desc);
  const Layout la = read(a_layout), lb = read(b_layout), lc = read(c_layout), lo = read(out_layout);
  expect(handle != nullptr && algo != nullptr, "a product without a handle or an algorithm");
  expect_valid(d, la, lb, lc, lo);
  expect(algo->data[1] == lo.rows * 1000003 + lo.cols, "an algorithm of another product");
  expect(algo->data[2] == bytes && (bytes == 0 || workspace), "another workspace than promised");
  const float scale = *static_cast<const float*>(alpha), add = *static_cast<const float*>(beta);
  const DType left = dtype_of(la.type), right = dtype_of(lb.type), result = dtype_of(lo.type);
  const auto k = static_cast<std::int64_t>(d.left == CUBLAS_OP_T ? la.rows : la.cols);
  const auto m = static_cast<std::int64_t>(lo.rows), n = static_cast<std::int64_t>(lo.cols);
  const auto element = [](const void* data, const Layout& l, std::int32_t op, DType dtype,
                          std::int64_t batch, std::int64_t i, std::int64_t j) {
    return load_as_float(
        data, dtype, batch * l.stride + (op == CUBLAS_OP_T ? j + i * l.pitch : i + j * l.pitch));
  };
  for (std::int64_t z = 0; z < lo.batch; ++z) {
    for (std::int64_t j = 0; j < static_cast<std::int64_t>(lo.cols); ++j) {
      for (std::int64_t i = 0; i < static_cast<std::int64_t>(lo.rows); ++i) {
        float sum = 0;
        for (std::int64_t x = 0; x < k; ++x)
          sum += element(a, la, d.left, left, z, i, x) * element(b, lb, d.right, right, z, x, j) *
                 factor(d.left_scale, d.left_mode, i, x, m, k) *
                 factor(d.right_scale, d.right_mode, j, x, n, k);
        float value = scale * sum;
        // As in every BLAS: c is not read where beta is zero.
        if (add != 0) value += add * element(c, lc, CUBLAS_OP_N, result, z, i, j);
        if (d.epilogue == CUBLASLT_EPILOGUE_BIAS)
          value += load_as_float(d.bias, dtype_of(d.bias_type), z * d.bias_stride + i);
        store_from_float(out, result, z * lo.stride + i + j * lo.pitch, value);
      }
    }
  }
  ++state().products;
  return CUBLAS_STATUS_SUCCESS;
}

/// A clean state, and the table of functions.
inline Functions functions() {
  State& s = state();
  s.readers = {};
  s.queries.clear();
  s.fault.clear();
  s.has_algorithm = true;
  s.version = 130100;
  s.unused = 0;
  s.products = 0;
  return {create,   version,         status_name,    layout_init, layout_set, desc_init,
          desc_set, preference_init, preference_set, heuristic,   matmul};
}

/// The same with the descriptors of the real library; nothing where it can't be loaded.
inline std::optional<Functions> functions_with_real_descriptors() {
  const auto library = cuda::cublaslt::load_library(nullptr);
  if (!library.found) return std::nullopt;
  Functions f = functions();
  f.layout_init = library.functions.layout_init, f.layout_set = library.functions.layout_set;
  f.desc_init = library.functions.desc_init, f.desc_set = library.functions.desc_set;
  f.preference_init = library.functions.preference_init;
  f.preference_set = library.functions.preference_set;
  void* handle = dlopen(library.path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (!handle) return std::nullopt;
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
  };
  Readers& readers = state().readers;
  take(readers.layout, "cublasLtMatrixLayoutGetAttribute");
  take(readers.desc, "cublasLtMatmulDescGetAttribute");
  take(readers.preference, "cublasLtMatmulPreferenceGetAttribute");
  if (!readers) return std::nullopt;
  return f;
}

}  // namespace tessera::fake_lt
