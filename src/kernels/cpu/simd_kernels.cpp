// Compiled once per instruction set: foreach_target includes this file again for each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/cpu/simd_kernels.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

#include "src/core/check.hpp"
#include "src/core/half.hpp"
#include "src/kernels/cpu/layout.hpp"
#include "src/kernels/cpu/simd.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessera::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Vec = hn::Vec<D>;
constexpr D kTag{};
// Offsets are within a tile, far below the largest int.
// NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result)
constexpr int kLanes = static_cast<int>(HWY_LANES(float));
static_assert(kLanes <= planning::kMaxLanes && kLanes * 3 <= planning::kMaxStrip);

// Register tile: rows x vectors accumulators, plus the vectors of one right row and one broadcast,
// must fit the register file (32 registers with AVX-512 and NEON, 16 before).
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif
constexpr int kTileVectors = 3;

template <int kRows, int kVectors>
void multiply_tile(const Segment* segments, int count, std::int64_t left_offset,
                   const ProductStrides& strides, float* c, std::int64_t c_row, bool accumulate) {
  Vec sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = accumulate ? hn::LoadU(kTag, c + r * c_row + v * kLanes) : hn::Zero(kTag);
  const std::int64_t left_row = strides.left_row, left_k = strides.left_k;
  for (int s = 0; s < count; ++s) {
    const float* left = segments[s].left + left_offset;
    const float* right = segments[s].right;
    const std::int64_t depth = segments[s].depth;
#pragma GCC unroll 4
    for (std::int64_t k = 0; k < depth; ++k) {
      Vec b[kVectors];
      for (int v = 0; v < kVectors; ++v) b[v] = hn::LoadU(kTag, right + v * kLanes);
      for (int r = 0; r < kRows; ++r) {
        const Vec a = hn::Set(kTag, left[r * left_row]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(a, b[v], sum[r][v]);
      }
      right += strides.right_k;
      left += left_k;
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], kTag, c + r * c_row + v * kLanes);
}

using TileFunction = void (*)(const Segment*, int, std::int64_t, const ProductStrides&, float*,
                              std::int64_t, bool);
// kTiles[vectors - 1][rows - 1]
template <int kVectors, int... kRow>
constexpr std::array<TileFunction, sizeof...(kRow)> tile_row(std::integer_sequence<int, kRow...>) {
  return {multiply_tile<kRow + 1, kVectors>...};
}
constexpr std::array<std::array<TileFunction, kTileRows>, kTileVectors> kTiles = {
    tile_row<1>(std::make_integer_sequence<int, kTileRows>{}),
    tile_row<2>(std::make_integer_sequence<int, kTileRows>{}),
    tile_row<3>(std::make_integer_sequence<int, kTileRows>{})};

void multiply(const Segment* segments, int count, const ProductStrides& strides, int rows,
              int vectors, float* c, std::int64_t c_row, bool accumulate) {
  const auto& tiles = kTiles[static_cast<std::size_t>(vectors - 1)];
  for (int r = 0; r < rows; r += kTileRows) {
    const int height = std::min(kTileRows, rows - r);
    tiles[static_cast<std::size_t>(height - 1)](segments, count, r * strides.left_row, strides,
                                                c + r * c_row, c_row, accumulate);
  }
}

// ---- conversions -------------------------------------------------------------------------------

using I32 = hn::RebindToSigned<D>;
using U32 = hn::RebindToUnsigned<D>;
using U16 = hn::Rebind<std::uint16_t, D>;
constexpr I32 kTagI{};
constexpr U32 kTagU{};
constexpr U16 kTag16{};

Vec from_bf16(hn::Vec<U16> bits) {
  return hn::BitCast(kTag, hn::ShiftLeft<16>(hn::PromoteTo(kTagU, bits)));
}

// f16 to f32: shift exponent and mantissa up by 13 bits; multiplying by 2^112 corrects the
// exponent's bias and normalises subnormals, exactly. Inf and NaN get the largest exponent back.
Vec from_f16(hn::Vec<U16> bits) {
  const auto wide = hn::PromoteTo(kTagU, bits);
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(kTagU, 0x8000u)));
  const auto body = hn::And(wide, hn::Set(kTagU, 0x7FFFu));
  const auto scaled = hn::Mul(hn::BitCast(kTag, hn::ShiftLeft<13>(body)), hn::Set(kTag, 0x1p112f));
  const auto special = hn::Or(hn::ShiftLeft<13>(body), hn::Set(kTagU, 0x7F800000u));
  const auto is_special = hn::BitCast(kTagI, body) > hn::Set(kTagI, 0x7BFF);
  const auto magnitude =
      hn::IfThenElse(hn::RebindMask(kTagU, is_special), special, hn::BitCast(kTagU, scaled));
  return hn::BitCast(kTag, hn::Or(magnitude, sign));
}

hn::Vec<U16> to_bf16(Vec x) {
  const auto bits = hn::BitCast(kTagU, x);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(kTagU, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(kTagU, 0x7FFFu)));
  const auto quiet = hn::Or(bits, hn::Set(kTagU, 0x00400000u));
  const auto kept = hn::IfThenElse(hn::RebindMask(kTagU, hn::Eq(x, x)), rounded, quiet);
  return hn::DemoteTo(kTag16, hn::BitCast(kTagI, hn::ShiftRight<16>(kept)));
}

template <float (*kWiden)(std::uint8_t)>
constexpr std::array<float, 256> values_of_codes() {
  std::array<float, 256> values{};
  for (std::size_t code = 0; code < values.size(); ++code)
    values[code] = kWiden(static_cast<std::uint8_t>(code));
  return values;
}
constexpr auto kE4m3Values = values_of_codes<core::float_from_e4m3>();
constexpr auto kE5m2Values = values_of_codes<core::float_from_e5m2>();

void load(const void* source, DType dtype, std::int64_t stride, std::int64_t n, float* out) {
  std::int64_t i = 0;
  if (core::is_fp8(dtype)) {
    const auto& values = dtype == DType::e4m3 ? kE4m3Values : kE5m2Values;
    const std::uint8_t* in = static_cast<const std::uint8_t*>(source);
    for (; i < n; ++i) out[i] = values[in[i * stride]];
    return;
  }
  if (stride == 1 && dtype == DType::f32) {
    std::memcpy(out, source, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  if (dtype == DType::f32) {
    const float* in = static_cast<const float*>(source);
    for (; i < n; ++i) out[i] = in[i * stride];
    return;
  }
  const std::uint16_t* in = static_cast<const std::uint16_t*>(source);
  if (stride == 1 && dtype == DType::bf16) {
    for (; i + kLanes <= n; i += kLanes)
      hn::StoreU(from_bf16(hn::LoadU(kTag16, in + i)), kTag, out + i);
  } else if (stride == 1) {
    for (; i + kLanes <= n; i += kLanes)
      hn::StoreU(from_f16(hn::LoadU(kTag16, in + i)), kTag, out + i);
  }
  if (dtype == DType::bf16)
    for (; i < n; ++i) out[i] = core::float_from_bf16(in[i * stride]);
  else
    for (; i < n; ++i) out[i] = core::float_from_f16(in[i * stride]);
}

void store(const float* source, std::int64_t n, void* out, DType dtype, std::int64_t stride) {
  std::int64_t i = 0;
  if (dtype == DType::f32) {
    float* to = static_cast<float*>(out);
    if (stride == 1) {
      std::memcpy(to, source, static_cast<std::size_t>(n) * sizeof(float));
    } else {
      for (; i < n; ++i) to[i * stride] = source[i];
    }
    return;
  }
  std::uint16_t* to = static_cast<std::uint16_t*>(out);
  if (dtype == DType::bf16) {
    if (stride == 1)
      for (; i + kLanes <= n; i += kLanes)
        hn::StoreU(to_bf16(hn::LoadU(kTag, source + i)), kTag16, to + i);
    for (; i < n; ++i) to[i * stride] = core::bf16_from_float(source[i]);
  } else {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2  // F16C rounds to nearest even
    const hn::Rebind<hwy::float16_t, D> half;
    if (stride == 1)
      for (; i + kLanes <= n; i += kLanes)
        hn::StoreU(hn::DemoteTo(half, hn::LoadU(kTag, source + i)), half,
                   reinterpret_cast<hwy::float16_t*>(to + i));
#endif
    for (; i < n; ++i) to[i * stride] = core::f16_from_float(source[i]);
  }
}

// ---- exponentials ------------------------------------------------------------------------------

// e^x to about one ulp: x = n ln 2 + r, a polynomial in r; the exponent is set by integer addition.
// Results below 2^-126 become 0, above 2^128 infinity; NaN stays NaN (second operand of Min and
// Max).
HWY_INLINE Vec exponential(Vec x) {
  const Vec bounded = hn::Max(hn::Set(kTag, -87.33f), hn::Min(hn::Set(kTag, 88.72284f), x));
  const Vec n = hn::Round(hn::Mul(bounded, hn::Set(kTag, 1.44269504088896341f)));
  Vec r = hn::NegMulAdd(n, hn::Set(kTag, 0.693145751953125f), bounded);
  r = hn::NegMulAdd(n, hn::Set(kTag, 1.428606765330187045e-06f), r);
  Vec p = hn::Set(kTag, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(kTag, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(kTag, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(kTag, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(kTag, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(kTag, 5.0000001201e-1f));
  p = hn::MulAdd(hn::Mul(r, r), p, hn::Add(r, hn::Set(kTag, 1.0f)));
  // 2^n in two factors, so that n = 128 does not overflow.
  const auto whole = hn::ConvertTo(kTagI, n);
  const auto half = hn::ShiftRight<1>(whole);
  const auto power = [](auto e) HWY_ATTR {
    return hn::BitCast(kTag, hn::ShiftLeft<23>(hn::Add(e, hn::Set(kTagI, 127))));
  };
  const Vec y = hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(whole, half)));
  const Vec low = hn::IfThenElse(hn::Lt(x, hn::Set(kTag, -87.33f)), hn::Zero(kTag), y);
  return hn::IfThenElse(hn::Gt(x, hn::Set(kTag, 88.72284f)), hn::Inf(kTag), low);
}

// tanh x = 1 - 2 / (e^2x + 1); near 0, where this cancels, its odd polynomial.
HWY_INLINE Vec hyperbolic_tangent(Vec x) {
  const Vec one = hn::Set(kTag, 1.0f), two = hn::Set(kTag, 2.0f);
  const Vec far = hn::Sub(one, hn::Div(two, hn::Add(exponential(hn::Add(x, x)), one)));
  const Vec z = hn::Mul(x, x);
  Vec p = hn::Set(kTag, -5.70498872745e-3f);
  p = hn::MulAdd(p, z, hn::Set(kTag, 2.06390887954e-2f));
  p = hn::MulAdd(p, z, hn::Set(kTag, -5.37397155531e-2f));
  p = hn::MulAdd(p, z, hn::Set(kTag, 1.33314422036e-1f));
  p = hn::MulAdd(p, z, hn::Set(kTag, -3.33332819422e-1f));
  const Vec near = hn::MulAdd(hn::Mul(x, z), p, x);
  return hn::IfThenElse(hn::Lt(hn::Abs(x), hn::Set(kTag, 0.625f)), near, far);
}

// ---- attention ---------------------------------------------------------------------------------

void hide(float* strip, std::int64_t row, int keys, int vectors, std::int32_t first_key,
          const LaneSight& sight) {
  for (int v = 0; v < vectors; ++v) {
    const auto lo = hn::LoadU(kTagI, sight.lo + v * kLanes);
    const auto hi = hn::LoadU(kTagI, sight.hi + v * kLanes);
    for (int j = 0; j < keys; ++j) {
      float* at = strip + j * row + v * kLanes;
      const auto key = hn::Set(kTagI, first_key + j);
      const auto seen = hn::AndNot(hn::VecFromMask(kTagI, hn::Lt(key, lo)),
                                   hn::VecFromMask(kTagI, hn::Lt(key, hi)));
      const auto mask = hn::RebindMask(kTag, hn::MaskFromVec(seen));
      hn::StoreU(hn::IfThenElse(mask, hn::LoadU(kTag, at), hn::Neg(hn::Inf(kTag))), kTag, at);
    }
  }
}

template <bool kSoftcap>
HWY_INLINE Vec map_score(Vec s, Vec scale, Vec softcap) {
  if constexpr (!kSoftcap) return hn::Mul(s, scale);
  const Vec capped = hn::Mul(softcap, hyperbolic_tangent(hn::Mul(s, scale)));
  // tanh would turn a masked score (-inf) into -softcap.
  return hn::IfThenElse(hn::Eq(s, hn::Neg(hn::Inf(kTag))), s, capped);
}

template <bool kSoftcap>
void softmax_columns(float* strip, std::int64_t row, int keys, int vectors, const ScoreMap& map,
                     float* maximum, float* sum, float* shrink) {
  const Vec scale = hn::Set(kTag, kSoftcap ? map.scale / map.softcap : map.scale);
  const Vec softcap = hn::Set(kTag, map.softcap);
  const Vec hidden = hn::Neg(hn::Inf(kTag));
  for (int v = 0; v < vectors; ++v) {
    float* column = strip + v * kLanes;
    const Vec before = hn::LoadU(kTag, maximum + v * kLanes);
    Vec top = before;
    for (int j = 0; j < keys; ++j) {
      const Vec raw = hn::LoadU(kTag, column + j * row);
      // A negative scale must not turn a masked score into +inf.
      const Vec t =
          hn::IfThenElse(hn::Eq(raw, hidden), raw, map_score<kSoftcap>(raw, scale, softcap));
      hn::StoreU(t, kTag, column + j * row);
      top = hn::Max(t, top);
    }
    // Lanes that have seen no key keep -inf; subtracting 0 instead avoids NaN.
    const Vec base = hn::IfThenElse(hn::Eq(top, hidden), hn::Zero(kTag), top);
    const Vec factor = exponential(hn::Sub(before, base));
    Vec total = hn::Zero(kTag), total2 = hn::Zero(kTag);
    int j = 0;
    for (; j + 2 <= keys; j += 2) {
      float* at = column + j * row;
      const Vec p = exponential(hn::Sub(hn::LoadU(kTag, at), base));
      const Vec q = exponential(hn::Sub(hn::LoadU(kTag, at + row), base));
      hn::StoreU(p, kTag, at);
      hn::StoreU(q, kTag, at + row);
      total = hn::Add(total, p);
      total2 = hn::Add(total2, q);
    }
    for (; j < keys; ++j) {
      const Vec p = exponential(hn::Sub(hn::LoadU(kTag, column + j * row), base));
      hn::StoreU(p, kTag, column + j * row);
      total = hn::Add(total, p);
    }
    const Vec old_sum = hn::LoadU(kTag, sum + v * kLanes);
    hn::StoreU(top, kTag, maximum + v * kLanes);
    hn::StoreU(hn::MulAdd(old_sum, factor, hn::Add(total, total2)), kTag, sum + v * kLanes);
    hn::StoreU(factor, kTag, shrink + v * kLanes);
  }
}

void softmax(float* strip, std::int64_t row, int keys, int vectors, const ScoreMap& map,
             float* maximum, float* sum, float* shrink) {
  const auto step = map.softcap > 0 ? softmax_columns<true> : softmax_columns<false>;
  step(strip, row, keys, vectors, map, maximum, sum, shrink);
}

void scale_lanes(float* c, std::int64_t row, int rows, int vectors, const float* factor) {
  for (int v = 0; v < vectors; ++v) {
    const Vec f = hn::LoadU(kTag, factor + v * kLanes);
    for (int r = 0; r < rows; ++r) {
      float* at = c + r * row + v * kLanes;
      hn::StoreU(hn::Mul(hn::LoadU(kTag, at), f), kTag, at);
    }
  }
}

// P = e^(t - lse); d(q.k) = P * (dP - delta) * dt/d(q.k), where t is the transformed score.
template <bool kSoftcap>
void backward_strip(float* score, float* dscore, std::int64_t row, int rows, int vectors,
                    const ScoreMap& map, const float* lse, const float* delta, bool per_lane) {
  const Vec scale = hn::Set(kTag, kSoftcap ? map.scale / map.softcap : map.scale);
  const Vec softcap = hn::Set(kTag, map.softcap);
  const Vec slope = hn::Set(kTag, map.scale);
  const Vec hidden = hn::Neg(hn::Inf(kTag));
  for (int r = 0; r < rows; ++r) {
    for (int v = 0; v < vectors; ++v) {
      float* s_at = score + r * row + v * kLanes;
      float* d_at = dscore + r * row + v * kLanes;
      const Vec l = per_lane ? hn::LoadU(kTag, lse + v * kLanes) : hn::Set(kTag, lse[r]);
      const Vec e = per_lane ? hn::LoadU(kTag, delta + v * kLanes) : hn::Set(kTag, delta[r]);
      const Vec raw = hn::LoadU(kTag, s_at);
      const auto seen = hn::Ne(raw, hidden);
      const Vec t = map_score<kSoftcap>(raw, scale, softcap);
      const Vec p = hn::IfThenElseZero(seen, exponential(hn::Sub(t, l)));
      Vec gradient = hn::Mul(hn::Mul(p, hn::Sub(hn::LoadU(kTag, d_at), e)), slope);
      if constexpr (kSoftcap) {
        const Vec ratio = hn::Div(t, softcap);
        gradient = hn::Mul(gradient, hn::NegMulAdd(ratio, ratio, hn::Set(kTag, 1.0f)));
      }
      hn::StoreU(p, kTag, s_at);
      hn::StoreU(hn::IfThenElseZero(seen, gradient), kTag, d_at);
    }
  }
}

void backward(float* score, float* dscore, std::int64_t row, int rows, int vectors,
              const ScoreMap& map, const float* lse, const float* delta, bool per_lane) {
  const auto step = map.softcap > 0 ? backward_strip<true> : backward_strip<false>;
  step(score, dscore, row, rows, vectors, map, lse, delta, per_lane);
}

// ---- activations -------------------------------------------------------------------------------

template <class F>
HWY_INLINE void for_each_vector(float* x, std::int64_t n, const F& f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(f(hn::LoadU(kTag, x + i)), kTag, x + i);
  if (i < n) {
    float tail[kLanes] = {};
    std::copy(x + i, x + n, tail);
    hn::StoreU(f(hn::LoadU(kTag, tail)), kTag, tail);
    std::copy(tail, tail + (n - i), x + i);
  }
}

void silu(float* x, std::int64_t n) {
  for_each_vector(x, n, [](Vec v) HWY_ATTR {
    return hn::Div(v, hn::Add(hn::Set(kTag, 1.0f), exponential(hn::Neg(v))));
  });
}

void gelu_tanh(float* x, std::int64_t n) {
  for_each_vector(x, n, [](Vec v) HWY_ATTR {
    const Vec cubic = hn::MulAdd(hn::Mul(hn::Mul(v, v), v), hn::Set(kTag, 0.044715f), v);
    const Vec t = hyperbolic_tangent(hn::Mul(cubic, hn::Set(kTag, 0.7978845608028654f)));
    return hn::Mul(hn::Mul(v, hn::Set(kTag, 0.5f)), hn::Add(t, hn::Set(kTag, 1.0f)));
  });
}

constexpr Simd table(const char* name) {
  return {name, kLanes,  kTileVectors, multiply, load, store,
          hide, softmax, scale_lanes,  backward, silu, gelu_tanh};
}

// NOLINTEND(bugprone-implicit-widening-of-multiplication-result)
}  // namespace tessera::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <cstdlib>
#include <string_view>
#include <vector>

namespace tessera::cpu {
namespace {

// The instruction sets of this machine, best first. (Highway's own dispatch would need its run-time
// library.)
std::vector<Simd> available() {
  std::vector<Simd> sets;
#if HWY_ARCH_X86
  __builtin_cpu_init();
#if HWY_TARGETS & HWY_AVX3
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    sets.push_back(N_AVX3::table("avx512"));
#endif
#if HWY_TARGETS & HWY_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back(N_AVX2::table("avx2"));
#endif
#if HWY_TARGETS & HWY_SSE4
  if (__builtin_cpu_supports("sse4.2")) sets.push_back(N_SSE4::table("sse4"));
#endif
#endif
#if HWY_TARGETS & HWY_NEON
  sets.push_back(N_NEON::table("neon"));
#endif
#if HWY_TARGETS & HWY_EMU128
  sets.push_back(N_EMU128::table("scalar"));
#endif
#if HWY_TARGETS & HWY_SCALAR
  sets.push_back(N_SCALAR::table("scalar"));
#endif
  return sets;
}

Simd choose() {
  const std::vector<Simd> sets = available();
  if (const char* wanted = std::getenv("TESSERA_SIMD"))
    for (const Simd& set : sets)
      if (std::string_view(set.name) == wanted) return set;
  return sets.front();
}

}  // namespace

const Simd& simd() {
  static const Simd chosen = choose();
  return chosen;
}

}  // namespace tessera::cpu
#endif
