#include "src/kernels/cuda/cublaslt/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/cublaslt/rows.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

void refuse_limit(BlasLimit limit, Reasons& reasons) {
  constexpr const char* kLines = "contiguous rows or columns that do not overlap";
  switch (limit) {
    case BlasLimit::none:
      break;
    case BlasLimit::a:
      return reasons.layout("a", kLines);
    case BlasLimit::b:
      return reasons.layout("b", kLines);
    case BlasLimit::out:
      return reasons.layout("out", kLines);
    case BlasLimit::alpha:
      return reasons.unsupported("epilogue.alpha of 0");
    case BlasLimit::activation:
      return reasons.unsupported("epilogue.activation");
    case BlasLimit::c:
      return reasons.layout("epilogue.beta",
                            "an f32 result, and c of out's dtype, contiguous along the same "
                            "dimension");
    case BlasLimit::bias:
      return reasons.layout("epilogue.bias",
                            "out's dtype, contiguous and at multiples of 16 bytes, along the "
                            "dimension in which out is contiguous");
  }
}

// ---- Time --------------------------------------------------------------------------------------

/// What large products reach of the tensor cores' rate and of the memory's.
struct Shares {
  double multiply, memory;
};

/// Bytes that all lines of a matrix begin at multiples of, up to 16. Pitches and the result's order
/// are no part of a shape: lines that TMA cannot read are taken to lie without padding, and so are
/// the result's rows.
std::int64_t alignment_of(std::int64_t length, DType dtype) {
  return std::gcd(length * size_of(dtype), std::int64_t{16});
}
std::int64_t alignment_of(const OperandShape& o) {
  if (o.tma_readable) return 16;
  const std::int64_t length = o.unit_col_stride == o.transposed ? o.rows : o.cols;
  const std::int64_t packed = alignment_of(length, o.dtype);
  return packed == 16 ? size_of(o.dtype) : packed;  // then it is the address that is not
}

/// Hopper: 100 random shapes through PyTorch on an H100 (CUDA 13.0, 2026-11-25, graph replays).
/// Matrices whose lines do not begin at multiples of 16 bytes, the result among them, go through
/// kernels for Ampere.
Shares shares_of(const MatmulShape& s, const DeviceFacts& device) {
  const std::int64_t alignment =
      std::min({alignment_of(s.a), alignment_of(s.b), alignment_of(s.n, s.out)});
  if (device.compute_capability / 10 != 9) return {alignment == 16 ? 0.8 : 0.3, 0.9};
  if (alignment == 16) return {0.825, 0.95};
  return alignment > 2 ? Shares{0.21, 0.55} : Shares{0.145, 0.35};
}

/// FLOPs per second of large products.
double rate_of(const MatmulShape& s, const Shares& shares, const DeviceFacts& device) {
  if (s.a.dtype != DType::f32) return shares.multiply * device.tensor_tflops * 1e12;
  // Two FLOPs per lane and clock. GA100 has half the lanes of the others.
  constexpr double kOfLanes = 0.75;
  const double lanes = device.compute_capability == 80 ? 64 : 128;
  return kOfLanes * 2 * lanes * device.units * device.clock_ghz * 1e9;
}

/// A tile of 128 rows or columns and `width` of the other side, and what it reaches of the rate.
struct TileWidth {
  int width;
  double share;
};
constexpr TileWidth kWidths[] = {{256, 1},   {192, 0.98}, {128, 0.95}, {96, 0.87},
                                 {64, 0.75}, {32, 0.5},   {16, 0.3}};
constexpr int kTall = 128;
constexpr double kSplitSeconds = 5e-6;  // around a split depth: partial sums and their reduction
constexpr std::int64_t kMinSplitDepth = 256;

/// Rounds of the tile that ends first; split-K where tiles are fewer than SMs. The last round of
/// several costs what is in it: the library has tiles of many sizes to choose from.
double multiply_seconds(const MatmulShape& s, double rate, const DeviceFacts& device) {
  const double sms = std::max(device.units, 1);
  if (rate <= 0) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const TileWidth& tile : kWidths) {
    const double flops_per_depth = 2.0 * kTall * tile.width * sms / (rate * tile.share);
    for (const auto& [tall, wide] : {std::pair(s.m, s.n), std::pair(s.n, s.m)}) {
      const double tiles = std::ceil(real(tall) / kTall) * std::ceil(real(wide) / tile.width) *
                           real(std::max<std::int64_t>(s.batch, 0));
      if (tiles == 0) return 0;
      least = std::min(least, std::max(tiles / sms, 1.0) * flops_per_depth * real(s.k));
      if (2 * tiles > sms) continue;
      const double splits = std::min(std::floor(sms / tiles), real(s.k / kMinSplitDepth));
      if (splits >= 2)
        least = std::min(least, flops_per_depth * real(s.k) / splits + kSplitSeconds);
    }
  }
  return least;
}

double seconds_of(const MatmulShape& s, const DeviceFacts& device) {
  // What a kernel costs besides its work is less than what selection adds for every launch.
  constexpr double kFixed = 2.3e-6;
  const Shares shares = shares_of(s, device);
  const double multiply = multiply_seconds(s, rate_of(s, shares, device), device);
  const double bytes_rate = shares.memory * device.memory_tbs * 1e12;
  // Results take longer than operands: 9600 x 9432 with a depth of 32 is written at 1.8 TB/s.
  constexpr double kWritten = 1.3;
  const double bytes =
      work_of(s).bytes + kWritten * size_of(s.out) * real(s.batch) * real(s.m) * real(s.n);
  constexpr double kOnChip = 35e12;  // bytes per second; the memory of an H100 hides more of it
  const double memory = bytes_rate > 0 ? bytes / bytes_rate + bytes / kOnChip : 0;
  // The shorter of the two is not hidden entirely.
  return std::max(multiply, memory) + 0.05 * std::min(multiply, memory) + kFixed -
         overhead_seconds(device);
}

/// Dense products by NVIDIA's library.
struct CublasLt {
  using Shape = MatmulShape;
  using Layout = CublasLtLayout;

  static void refuse(const Shape& s, const KernelRow&, const DeviceFacts&, Reasons& reasons) {
    if (s.a.sparse || s.b.sparse) reasons.unsupported("a sparse operand");
    if (s.grouped) reasons.unsupported("group_offsets");
    if (s.out != s.a.dtype && s.out != DType::f32)
      reasons.dtype("out", s.out, core::dtypes({s.a.dtype, DType::f32}));
    refuse_limit(s.blas, reasons);
    if (s.k == 0) reasons.unsupported("a product without depth (k of 0)");
    constexpr std::int64_t kMaxBatch = 65535;
    reasons.unless_at_most("the largest size", std::max({s.m, s.n, s.k}), INT32_MAX);
    reasons.unless_at_most("matrices of a batch", s.batch, kMaxBatch);
  }
  static Layout layout(const Shape&, const KernelRow&, const DeviceFacts& device, Reasons&) {
    // Partial sums of split depths lie there. NVIDIA recommends 32 MiB on Hopper and later.
    constexpr std::int64_t kMiB = std::int64_t{1} << 20;
    return {device.compute_capability >= 90 ? 32 * kMiB : 8 * kMiB};
  }
  static double seconds(const Shape& s, const Layout&, const KernelRow&,
                        const DeviceFacts& device) {
    return seconds_of(s, device);
  }
  static BufferSizes buffers(const Shape&, const Layout& at, const KernelRow&, int) {
    return {at.workspace, 0};
  }
  static std::string describe(const Shape& s, const Layout&) {
    return s.a.tma_readable && s.b.tma_readable
               ? ""
               : "; slower, as operands are not aligned to 16 bytes";
  }
};

}  // namespace

KernelFamily sm80_cublaslt_family() {
  KernelFamily family =
      make_family<CublasLt>("sm80_cublaslt", Backend::sm80, Op::matmul, kSm80CublasLtRows);
  family.depends_on_blas = true;
  return family;
}

}  // namespace tessera::planning
