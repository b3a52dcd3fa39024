#include "src/kernels/cuda/cublaslt/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/cublaslt/rows.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

double real(std::int64_t n) { return static_cast<double>(n); }

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
      return reasons.layout("epilogue.c", "out's dtype, contiguous along the same dimension");
    case BlasLimit::bias:
      return reasons.layout("epilogue.bias",
                            "out's dtype, contiguous and at multiples of 16 bytes, along the "
                            "dimension in which out is contiguous");
  }
}

// ---- Time --------------------------------------------------------------------------------------

/// FLOPs per second of large products.
double rate_of(const MatmulShape& s, const DeviceFacts& device) {
  if (s.a.dtype == DType::f32) {
    // Two FLOPs per lane and clock. GA100 has half the lanes of the others.
    constexpr double kOfLanes = 0.75;
    const double lanes = device.compute_capability == 80 ? 64 : 128;
    return kOfLanes * 2 * lanes * device.units * device.clock_ghz * 1e9;
  }
  // H100: 690 of the 970 TFLOPS that wgmma alone reaches. Operands that are not at multiples of 16
  // bytes go through kernels for Ampere: 157 TFLOPS at 8191^3.
  const bool hopper = device.compute_capability / 10 == 9;
  const bool aligned = s.a.tma_readable && s.b.tma_readable;
  const double share = hopper ? (aligned ? 0.71 : 0.16) : (aligned ? 0.8 : 0.3);
  return share * device.tensor_tflops * 1e12;
}

/// A tile of 128 rows or columns and `width` of the other side, and what it reaches of the rate.
struct TileWidth {
  int width;
  double share;
};
constexpr TileWidth kWidths[] = {{256, 1}, {128, 0.95}, {64, 0.75}, {32, 0.5}, {16, 0.3}};
constexpr int kTall = 128;
constexpr double kSplitSeconds = 3e-6;  // around a split depth: partial sums and their reduction
constexpr std::int64_t kMinSplitDepth = 256;

/// Whole rounds of the tile that ends first; split-K where tiles are fewer than SMs.
double multiply_seconds(const MatmulShape& s, const DeviceFacts& device) {
  const double rate = rate_of(s, device), sms = std::max(device.units, 1);
  if (rate <= 0) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const TileWidth& tile : kWidths) {
    const double flops_per_depth = 2.0 * kTall * tile.width * sms / (rate * tile.share);
    for (const auto& [tall, wide] : {std::pair(s.m, s.n), std::pair(s.n, s.m)}) {
      const double tiles = std::ceil(real(tall) / kTall) * std::ceil(real(wide) / tile.width) *
                           real(std::max<std::int64_t>(s.batch, 0));
      least = std::min(least, std::ceil(tiles / sms) * flops_per_depth * real(s.k));
      if (tiles == 0 || 2 * tiles > sms) continue;
      const double splits = std::min(std::floor(sms / tiles), real(s.k / kMinSplitDepth));
      if (splits >= 2)
        least = std::min(least, flops_per_depth * real(s.k) / splits + kSplitSeconds);
    }
  }
  return least;
}

double seconds_of(const MatmulShape& s, const DeviceFacts& device) {
  // H100: 3.0 of the 3.1 TB/s that plain reads reach. What a kernel costs besides its work is less
  // than what selection adds for every launch.
  constexpr double kOfMemory = 0.97, kFixed = 2.5e-6;
  const double multiply = multiply_seconds(s, device);
  const double bytes_rate = kOfMemory * device.memory_tbs * 1e12;
  const double memory = bytes_rate > 0 ? work_of(s).bytes / bytes_rate : 0;
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
  static Layout layout(const Shape& s, const KernelRow&, const DeviceFacts& device, Reasons&) {
    // Partial sums of split depths lie there. NVIDIA recommends 32 MiB on Hopper and later.
    constexpr std::int64_t kMiB = std::int64_t{1} << 20;
    if (s.k < 2 * kMinSplitDepth) return {0};
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
  return make_family<CublasLt>("sm80_cublaslt", Backend::sm80, Op::matmul, kSm80CublasLtRows);
}

}  // namespace tessera::planning
