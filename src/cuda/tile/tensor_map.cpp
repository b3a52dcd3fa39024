#include "src/cuda/tile/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include <tessera/error.hpp>

#include "src/cuda/common/check.hpp"

namespace tessera::cuda::tile {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;  // coordinates are signed 32-bit numbers
constexpr std::int64_t kAlignment = 16;

using Encode = decltype(&cuTensorMapEncodeTiled);

/// libcuda is never linked: the entry point is looked up where a GPU is in use.
Encode encode_function() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &found),
        "cudaGetDriverEntryPointByVersion(cuTensorMapEncodeTiled)");
  if (found != cudaDriverEntryPointSuccess || !entry) {
    throw Error(ErrorCode::device, "cuTensorMapEncodeTiled: the driver does not offer it");
  }
  return reinterpret_cast<Encode>(entry);
}

bool is_pitch(std::int64_t elements, std::int64_t size, int element_bytes) {
  return size <= 1 || (elements > 0 && elements * element_bytes % kAlignment == 0);
}

}  // namespace

bool tma_readable(const MatrixMap& m) {
  const int bytes = size_of(m.dtype);
  return reinterpret_cast<std::uintptr_t>(m.data) % kAlignment == 0 &&
         is_pitch(m.row_stride, m.rows, bytes) && is_pitch(m.batch_stride, m.batches, bytes) &&
         std::max({m.inner, m.rows, m.batches}) < kMaxSize;
}

CUtensorMap tensor_map(const MatrixMap& m, int box_rows, int box_inner) {
  static const Encode encode = encode_function();
  const auto bytes = static_cast<cuuint64_t>(size_of(m.dtype));
  // A dimension of size 1 may come with any stride: give it a legal one.
  const auto pitch = [&](std::int64_t stride, std::int64_t size) {
    return size <= 1 ? cuuint64_t{kAlignment} : static_cast<cuuint64_t>(stride) * bytes;
  };
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(std::max<std::int64_t>(m.inner, 1)),
                              static_cast<cuuint64_t>(std::max<std::int64_t>(m.rows, 1)),
                              static_cast<cuuint64_t>(std::max<std::int64_t>(m.batches, 1))};
  const cuuint64_t pitches[] = {pitch(m.row_stride, m.rows), pitch(m.batch_stride, m.batches)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_inner), static_cast<cuuint32_t>(box_rows),
                            1};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUtensorMapDataType type =
      m.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUtensorMapSwizzle swizzle = box_inner == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : box_inner == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                       : CU_TENSOR_MAP_SWIZZLE_32B;
  CUtensorMap map{};
  const CUresult status =
      encode(&map, type, 3, const_cast<void*>(m.data), sizes, pitches, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorCode::device, "cuTensorMapEncodeTiled: error " + std::to_string(status));
  }
  return map;
}

}  // namespace tessera::cuda::tile
