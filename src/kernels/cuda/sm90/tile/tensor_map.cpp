#include "src/kernels/cuda/sm90/tile/tensor_map.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include <tessera/error.hpp>

#include "src/core/recent.hpp"
#include "src/kernels/cuda/common/check.hpp"

namespace tessera::cuda::tile {
namespace {

constexpr std::int64_t kMaxSize = std::int64_t{1} << 31;  // coordinates are signed 32-bit numbers
constexpr std::int64_t kAlignment = 16;

using Encode = decltype(&cuTensorMapEncodeTiled);

/// libcuda is not linked; its entry point is looked up on first use.
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

/// One dimension of a tensor and its extent in a box; stride in elements.
struct Dimension {
  std::int64_t size, stride;
  int box;
};

CUtensorMapDataType data_type(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::e4m3:
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
    default:
      throw Error(ErrorCode::unsupported, std::string("tensor maps: dtype ") + to_string(dtype) +
                                              " is not supported (supported: f16, bf16, e4m3)");
  }
}

/// Elements in a line of 128 bytes.
int line_of(DType dtype) { return 128 / size_of(dtype); }

/// How much around what a box reads is fetched into L2. 256 bytes bring the next box of the same
/// rows along: forward attention of B16 S1024 takes 202 us, with 128 bytes 212 (H200). But where
/// memory is the limit they cost bandwidth: a decode step of B64 S8192 takes 521 us, with 128 bytes
/// 487. Of rows of less than 256 bytes, what lies behind is another head's.
CUtensorMapL2promotion promotion_of(std::int64_t line_bytes, bool streams) {
  if (!streams) return CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
  return line_bytes >= 128 ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B : CU_TENSOR_MAP_L2_PROMOTION_L2_64B;
}

CUtensorMap encode(DType dtype, const void* data, std::initializer_list<Dimension> dimensions,
                   bool streams = false) {
  static const Encode function = encode_function();
  constexpr std::size_t kMaxRank = 5;
  cuuint64_t sizes[kMaxRank] = {}, pitches[kMaxRank] = {};
  cuuint32_t box[kMaxRank] = {};
  const cuuint32_t steps[kMaxRank] = {1, 1, 1, 1, 1};
  std::size_t rank = 0;
  for (const Dimension& d : dimensions) {
    sizes[rank] = static_cast<cuuint64_t>(std::max<std::int64_t>(d.size, 1));
    // A dimension of size 1 may have any stride; the driver requires a valid one.
    if (rank > 0)
      pitches[rank - 1] =
          d.size <= 1 ? cuuint64_t{kAlignment} : static_cast<cuuint64_t>(d.stride * size_of(dtype));
    box[rank++] = static_cast<cuuint32_t>(d.box);
  }
  const int line_bytes = static_cast<int>(box[0]) * size_of(dtype);
  const CUtensorMapSwizzle swizzle = line_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : line_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                        : CU_TENSOR_MAP_SWIZZLE_32B;
  CUtensorMap map{};
  const CUresult status =
      function(&map, data_type(dtype), static_cast<cuuint32_t>(rank), const_cast<void*>(data),
               sizes, pitches, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
               promotion_of(static_cast<std::int64_t>(sizes[0]) * size_of(dtype), streams),
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) {
    throw Error(ErrorCode::device, "cuTensorMapEncodeTiled: error " + std::to_string(status));
  }
  return map;
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

bool tma_writable(const MatrixMap& m) {
  return tma_readable(m) && m.inner * size_of(m.dtype) % kAlignment == 0;
}

CUtensorMap tensor_map(const MatrixMap& m, int box_rows, int box_inner) {
  if (box_inner == 0) box_inner = line_of(m.dtype);
  return encode(
      m.dtype, m.data,
      {{m.inner, 1, box_inner}, {m.rows, m.row_stride, box_rows}, {m.batches, m.batch_stride, 1}});
}

CUtensorMap panel_map(const MatrixMap& m, int box_rows, int box_panels, int box_inner) {
  const int panel = box_inner > 0 ? box_inner : line_of(m.dtype);
  const bool cut = box_panels > 0;
  return encode(m.dtype, m.data,
                {{cut ? panel : m.inner, 1, panel},
                 {m.rows, m.row_stride, box_rows},
                 {cut ? m.inner / panel : 1, panel, cut ? box_panels : 1},
                 {m.batches, m.batch_stride, 1}});
}

HeadsMap heads_of(const Tensor& t) {
  const int row = t.rank - 3;
  return {t.data,        t.dtype,           t.size(t.rank - 1),
          t.size(row),   t.size(row + 1),   row > 0 ? t.size(0) : 1,
          t.stride(row), t.stride(row + 1), row > 0 ? t.stride(0) : 0};
}

HeadsMap columns_of(const Tensor& t) {
  HeadsMap map = heads_of(t);
  std::swap(map.inner, map.rows);
  map.row_stride = t.stride(t.rank - 1);
  return map;
}

bool tma_readable(const HeadsMap& t) {
  const int bytes = size_of(t.dtype);
  return reinterpret_cast<std::uintptr_t>(t.data) % kAlignment == 0 &&
         is_pitch(t.row_stride, t.rows, bytes) && is_pitch(t.head_stride, t.heads, bytes) &&
         is_pitch(t.batch_stride, t.batches, bytes) &&
         std::max({t.inner, t.rows, t.heads, t.batches}) < kMaxSize;
}

CUtensorMap rows_map(const HeadsMap& t, int box_rows, int box_inner) {
  return encode(t.dtype, t.data,
                {{t.inner, 1, box_inner},
                 {t.rows, t.row_stride, box_rows},
                 {t.heads, t.head_stride, 1},
                 {t.batches, t.batch_stride, 1}},
                t.streams);
}

CUtensorMap pairs_map(const HeadsMap& t, int box_rows, int box_inner) {
  // A tensor of one row, whose stride may be any, has no second pair.
  const std::int64_t four_rows = t.rows > 1 ? 4 * t.row_stride : kAlignment;
  return encode(t.dtype, t.data,
                {{t.inner, 1, box_inner},
                 {t.rows, t.row_stride, 2},
                 {box_rows / 2, four_rows, box_rows / 2},
                 {t.heads, t.head_stride, 1},
                 {t.batches, t.batch_stride, 1}},
                t.streams);
}

CUtensorMap folded_map(const HeadsMap& t, int fold, int box_rows, int box_inner) {
  return encode(t.dtype, t.data,
                {{t.inner, 1, box_inner},
                 {fold, t.head_stride, fold},
                 {t.rows, t.row_stride, box_rows},
                 {t.heads / fold, t.head_stride * fold, 1},
                 {t.batches, t.batch_stride, 1}});
}

const CUtensorMap& recent_map(const HeadsMap& t, int fold, int box_rows, int box_inner) {
  thread_local core::Recent<CUtensorMap, 14> maps;
  return maps.get({reinterpret_cast<std::intptr_t>(t.data), static_cast<int>(t.dtype), t.inner,
                   t.rows, t.heads, t.batches, t.row_stride, t.head_stride, t.batch_stride,
                   t.streams, t.every_second_pair, fold, box_rows, box_inner},
                  [&] {
                    if (fold > 0) return folded_map(t, fold, box_rows, box_inner);
                    return t.every_second_pair ? pairs_map(t, box_rows, box_inner)
                                               : rows_map(t, box_rows, box_inner);
                  });
}

}  // namespace tessera::cuda::tile
