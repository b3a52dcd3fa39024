#include "src/kernels/cuda/cublaslt/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "src/kernels/cost.hpp"
#include "src/kernels/cuda/cublaslt/rows.hpp"
#include "src/problem/blas_fp8.hpp"
#include "src/walk/arithmetic.hpp"
#include "src/walk/work.hpp"

namespace tessera::planning {
namespace {

void refuse_limit(BlasLimit limit, Reasons& reasons) {
  constexpr const char* kLines = "contiguous rows or columns that do not overlap";
  constexpr const char* kAlongDepth =
      "FP8 that is contiguous along the depth (rows of a, columns of b), each line at a multiple "
      "of 16 bytes";
  constexpr const char* kScaleLayout =
      "at a multiple of 16 bytes, per line and 1 x 128: contiguous across the lines; 128 x 128: "
      "along the depth, lines of a multiple of 4, as quantize of Python makes them";
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
                            "out's dtype (beside FP8 and an f32 result: bf16), contiguous and at "
                            "multiples of 16 bytes, along the dimension in which out is "
                            "contiguous");
    case BlasLimit::fp8_a:
      return reasons.layout("a", kAlongDepth);
    case BlasLimit::fp8_b:
      return reasons.layout("b", kAlongDepth);
    case BlasLimit::fp8_depth:
      return reasons.layout("the depth of a product in FP8", "a multiple of 16");
    case BlasLimit::fp8_out:
      return reasons.layout("out",
                            "contiguous lines of a multiple of 16 elements, each at a "
                            "multiple of 16 bytes, beside operands in FP8");
    case BlasLimit::fp8_scales:
      return reasons.layout("a.scale and b.scale",
                            "one factor each; without a batch also per row of a and per column of "
                            "b, or 1 x 128 with 1 x 128 or 128 x 128");
    case BlasLimit::fp8_a_scale:
      return reasons.layout("a.scale", kScaleLayout);
    case BlasLimit::fp8_b_scale:
      return reasons.layout("b.scale", kScaleLayout);
    case BlasLimit::fp8_block_sizes:
      return reasons.layout("m and n beside factors of 128 elements", "multiples of 4");
  }
}

void refuse_fp8(const MatmulShape& s, int capability, Reasons& reasons) {
  const auto require = [&](const char* what) {
    reasons.add({.kind = Reason::Kind::compute_capability, .more = what, .got = capability});
  };
  if (s.a.dtype == DType::e5m2 && s.b.dtype == DType::e5m2)
    reasons.unsupported("e5m2 times e5m2", "one side has to be e4m3");
  if (capability < 89) return require("8.9 or later for FP8");
  const auto modes = scale_modes(s);
  if (modes && modes->a != ScaleMode::one && capability != 90)
    require("9.0 for factors per line or block");
}

// ---- Time --------------------------------------------------------------------------------------

/// What large products reach of the tensor cores' rate, and operands of the memory's. Results take
/// longer: `written` times their bytes at the memory's rate.
struct Shares {
  double multiply, memory, written;
};

/// Bytes that all lines of a matrix begin at multiples of, up to 16. Pitches and the result's order
/// are no part of a shape: lines that TMA cannot read are taken to lie without padding, and so are
/// the result's rows. Lines of one element are as good as one line across.
std::int64_t alignment_of(std::int64_t length, DType dtype) {
  return length == 1 ? 16 : std::gcd(length * size_of(dtype), std::int64_t{16});
}
std::int64_t alignment_of(const OperandShape& o) {
  if (o.tma_readable) return 16;
  const std::int64_t length = o.unit_col_stride == o.transposed ? o.rows : o.cols;
  const std::int64_t packed = alignment_of(length, o.dtype);
  // Where packed lines would be aligned, the address is not.
  return length > 1 && packed == 16 ? size_of(o.dtype) : packed;
}

/// Hopper: the best fit to 360 random shapes (seeds 1 to 3 of the sweep) through PyTorch on an H200
/// (CUDA 13.0, 2026-11-26, graph replays): 90% are within .77 to 1.26 of it. Matrices whose lines
/// do not begin at multiples of 16 bytes, the result among them, go through kernels for Ampere.
Shares shares_of(const MatmulShape& s, const DeviceFacts& device) {
  const std::int64_t alignment =
      std::min({alignment_of(s.a), alignment_of(s.b), alignment_of(s.n, s.out)});
  if (device.compute_capability / 10 != 9) return {alignment == 16 ? 0.8 : 0.3, 0.9, 2.5};
  constexpr std::int64_t kLine = 128;  // bytes
  if (alignment == 16) return {0.81, 1, s.n * size_of(s.out) % kLine == 0 ? 1.7 : 2.25};
  if (std::min(s.m, s.n) == 1) return {0.81, 0.42, 2.25};  // kernels for vectors
  return alignment > 2 ? Shares{0.227, 0.6, 2.5} : Shares{0.15, 0.26, 3.3};
}

/// FLOPs per second of large products.
double rate_of(const MatmulShape& s, const Shares& shares, const DeviceFacts& device) {
  // FP8 multiplies at twice the rate of 16 bits.
  const double per_16 = core::is_fp8(s.a.dtype) ? 2 : 1;
  if (s.a.dtype != DType::f32) return per_16 * shares.multiply * device.tensor_tflops * 1e12;
  // Two FLOPs per lane and clock. GA100 has half the lanes of the others.
  constexpr double kOfLanes = 0.75;
  const double lanes = device.compute_capability == 80 ? 64 : 128;
  return kOfLanes * 2 * lanes * device.units * device.clock_ghz * 1e9;
}

/// What a tile of 128 rows or columns and `width` of the other side reaches of the rate.
double share_of_width(int width) {
  struct Point {
    int width;
    double share;
  };
  constexpr Point kMeasured[] = {{16, 0.43},   {32, 0.63},  {64, 0.93}, {96, 0.935},
                                 {128, 0.985}, {192, 0.99}, {256, 1}};
  const Point* above = kMeasured + 1;
  while (above->width < width) ++above;
  const Point &low = above[-1], &high = *above;
  return low.share + (high.share - low.share) * (width - low.width) / (high.width - low.width);
}
constexpr int kTall = 128, kWidest = 256, kWidthStep = 16;
constexpr double kSplitSeconds = 3.1e-6;  // around a split depth: partial sums and their reduction
constexpr std::int64_t kMinSplitDepth = 96;

/// The longer of two times that overlap: the shorter one is not hidden entirely.
double overlapped(double a, double b) { return std::max(a, b) + 0.33 * std::min(a, b); }

/// Seconds of the tile that ends first, with `memory` seconds to move all bytes; split-K where
/// tiles are fewer than SMs. The last round of several costs what is in it: the library has tiles
/// of many sizes to choose from.
double work_seconds(const MatmulShape& s, double rate, double memory, const DeviceFacts& device) {
  const double sms = std::max(device.units, 1);
  if (rate <= 0) return memory;
  double least = std::numeric_limits<double>::infinity();
  for (int width = kWidthStep; width <= kWidest; width += kWidthStep) {
    const double flops_per_depth = 2.0 * kTall * width * sms / (rate * share_of_width(width));
    for (const auto& [tall, wide] : {std::pair(s.m, s.n), std::pair(s.n, s.m)}) {
      const double tiles = std::ceil(real(tall) / kTall) * std::ceil(real(wide) / width) *
                           real(std::max<std::int64_t>(s.batch, 0));
      if (tiles == 0) return memory;
      const double round = flops_per_depth * real(s.k);
      least = std::min(least, overlapped(std::max(tiles / sms, 1.0) * round, memory));
      if (2 * tiles > sms) continue;
      const double splits = std::min(std::floor(sms / tiles), real(s.k / kMinSplitDepth));
      if (splits >= 2) least = std::min(least, overlapped(round / splits, memory) + kSplitSeconds);
    }
  }
  return least;
}

double seconds_of(const MatmulShape& s, const DeviceFacts& device) {
  // What a kernel costs besides its work is less than what selection adds for every launch.
  constexpr double kFixed = 2.25e-6, kRamp = 0.6e-6;
  const Shares shares = shares_of(s, device);
  const double memory_rate = device.memory_tbs * 1e12;
  const double written = size_of(s.out) * real(s.batch) * real(s.m) * real(s.n);
  const double read = std::max(work_of(s).bytes - written, 0.0);
  const double memory =
      memory_rate > 0 ? (read / shares.memory + written * shares.written) / memory_rate : 0;
  const double work = work_seconds(s, rate_of(s, shares, device), memory, device);
  return work + std::min(work, kRamp) + kFixed - overhead_seconds(device);
}

/// Dense products by NVIDIA's library.
struct CublasLt {
  using Shape = MatmulShape;
  using Layout = CublasLtLayout;

  static void refuse(const Shape& s, const KernelRow&, const DeviceFacts& device,
                     Reasons& reasons) {
    if (s.a.sparse || s.b.sparse) reasons.unsupported("a sparse operand");
    if (s.grouped) reasons.unsupported("group_offsets");
    if (core::is_fp8(s.a.dtype)) {
      refuse_fp8(s, device.compute_capability, reasons);
    } else if (s.out != s.a.dtype && s.out != DType::f32) {
      reasons.dtype("out", s.out, core::dtypes({s.a.dtype, DType::f32}));
    }
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
