#pragma once

#include <cmath>
#include <cstdint>

#include "src/kernels/cuda/sm90/attention/traits.cuh"
#include "src/kernels/cuda/sm90/product/activation.cuh"
#include "src/kernels/cuda/sm90/tile/barrier.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The online softmax of one warpgroup's 64 rows: a thread holds parts of two rows, and the four
// lanes of a quad together hold them whole.
namespace tessera::cuda::sm90::attention {

using product::exp2_fast;

/// 64 keys of an element mask, a bit each.
__device__ __forceinline__ std::uint64_t read_bits(const Arguments& args, std::int64_t place) {
  const std::uint8_t* from = args.bits + place;
  if (args.bits_whole) return __ldg(reinterpret_cast<const unsigned long long*>(from));
  std::uint64_t bits = 0;
#pragma unroll 1
  for (int j = 0; j < 8; ++j, from += args.walk.bits_byte)
    bits = bits >> 8 | static_cast<std::uint64_t>(__ldg(from)) << 56;
  return bits;
}

/// Hides what a thread's two rows, eight apart, do not see of a step. Of a group of eight columns
/// it holds two of each row.
template <class T>
__device__ __forceinline__ void hide(float (&score)[T::kN / 2], const typename T::Step& step,
                                     const TileNote& tile, const Arguments& args, int row,
                                     int first_column) {
  const int row_of_line = T::kOwnLists ? row % T::kLineRows : row;
#pragma unroll
  for (int p = 0; p < T::kPieces; ++p) {
    std::uint64_t bits[2] = {kAllKeys, kAllKeys};
    if (step.bits[p] != kNoBits) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int query = row_of_line + half * 8 >> args.walk.pack_shift;
        const std::int64_t line = args.walk.word_queries.quotient(query);
        bits[half] = read_bits(args, step.bits[p] + line * args.walk.bits_row);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = tile.first_query + (row + half * 8 >> args.walk.pack_shift);
      const std::uint64_t seen =
          bits[half] >> first_column & tile.sight.bits_of(query, step.key[p] + first_column);
#pragma unroll
      for (int j = 0; j < 16; ++j)
        if ((seen >> (j / 2 * 8 + j % 2) & 1) == 0)
          score[(p * 8 + j / 2) * 4 + half * 2 + j % 2] = -INFINITY;
    }
  }
}

__device__ __forceinline__ float tanh_near_zero(float x) {
  const float square = x * x;
  float series = fmaf(square, -1382.0f / 155925.0f, 62.0f / 2835.0f);
  series = fmaf(fmaf(series, square, -17.0f / 315.0f), square, 2.0f / 15.0f);
  series = fmaf(series, square, -1.0f / 3.0f);
  return fmaf(x * square, series, x);
}

/// Of what is a number.
template <int kCount>
__device__ __forceinline__ float largest_of(const float (&score)[kCount]) {
  float part[4] = {};
#pragma unroll
  for (int i = 0; i < kCount; ++i) part[i % 4] = fmaxf(part[i % 4], fabsf(score[i]));
  return fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
}

/// cap * tanh(x * scale / cap), or x * scale where there is no cap.
template <int kCount>
__device__ __forceinline__ void map_scores(float (&score)[kCount], const ScoreMap& map) {
  if (map.cap == 0.0f) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) score[i] *= map.scale;
    return;
  }
  const float largest = largest_of(score);
  // Near zero, where most scores are, one minus almost one would leave few digits.
  if (tile::agreed(!(largest <= map.near))) {
    constexpr float kSmall = 0.4f;
    const float inner = map.scale / map.cap;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float x = score[i] * inner;
      const float far = 1.0f - __fdividef(2.0f, exp2_fast(x * 2.885390082f) + 1.0f);
      score[i] = map.cap * (fabsf(x) <= kSmall ? tanh_near_zero(x) : far);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float square = score[i] * score[i];
      score[i] *= fmaf(fmaf(square, map.series[2], map.series[1]), square, map.series[0]);
    }
  }
}

struct Softmax {
  // Weights are 2^(score * scale - base). The base is the maximum of the first scores that the row
  // sees, and stays while weights are not much larger than one.
  static constexpr float kUnseen = -3.4e38f;  // until then: what is hidden has no weight
  static constexpr float kSlack = 8.0f;       // an exponent of two
  float base[2] = {kUnseen, kUnseen};
  float sum[2] = {0.0f, 0.0f};  // of this thread's columns alone

  __device__ __forceinline__ bool seen(int half) const { return base[half] != kUnseen; }

  /// First scores become weights, and their maxima bases.
  template <int kCount>
  __device__ __forceinline__ void take_first(float (&score)[kCount], const Exponents& exponents) {
    float total[2];
    find_bases(score, exponents);
    weigh(score, exponents, total);
    add(total);
  }

  /// Scores become weights, and bases move where a weight would be more than 2^kSlack, which is
  /// rare but for first scores. `rescale` then gets what sums so far have to be multiplied by: for
  /// a whole warp, before any exponential.
  template <int kCount>
  __device__ __forceinline__ void take_by_maxima(float (&score)[kCount], const Exponents& exponents,
                                                 const auto& rescale) {
    float top[2], total[2];
    find_bounds(score, top);
    if (are_beyond(top, exponents)) {
      find_tops(score, top);
      if (are_beyond(top, exponents)) move_bases(top, exponents, rescale);
    }
    weigh(score, exponents, total);
    add(total);
  }

  /// Whether scores, none of which is as an exponent of two beyond `most`, leave the bases where
  /// they are.
  __device__ __forceinline__ bool fits(float most) const {
    return most <= fminf(base[0], base[1]) + kSlack;
  }

  /// Scores that fit become weights, by a series of their squares that ends in exponents of two.
  template <int kCount>
  __device__ __forceinline__ void take_by_series(float (&score)[kCount], const float (&series)[3]) {
    float total[2];
    weigh(score, total, [&](float x, float base) {
      const float square = x * x;
      return fmaf(x, fmaf(fmaf(square, series[2], series[1]), square, series[0]), -base);
    });
    add(total);
  }

  /// The same without a look at maxima, for rows that all have seen a key: sums of weights, needed
  /// anyway, tell if a weight was too large. Then bases move, and weights with them; where some are
  /// no numbers, `again` brings the scores back for another try. The vote also keeps waits behind
  /// it from moving up.
  template <int kCount>
  __device__ __forceinline__ void take_by_sums(float (&score)[kCount], const Exponents& exponents,
                                               const auto& rescale, const auto& again) {
    float total[2];
    weigh(score, exponents, total);
    if (tile::agreed(is_too_large(0, total) | is_too_large(1, total))) {
      if (tile::agreed(!isfinite(total[0]) | !isfinite(total[1]))) {
        again([&](const auto& rescale_later) {
          float top[2];
          find_tops(score, top);
          move_bases(top, exponents, rescale_later);
          weigh(score, exponents, total);
        });
      } else {
        shrink_weights(score, total, rescale);
      }
    }
    add(total);
  }

  /// For rows that have seen nothing: there is nothing to rescale.
  template <int kCount>
  __device__ __forceinline__ void find_bases(const float (&score)[kCount],
                                             const Exponents& exponents) {
    float top[2];
    find_tops(score, top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      top[half] = of_quad(top[half]);
      if (!seen(half) & top[half] > -INFINITY) base[half] = base_of(top[half], exponents);
    }
  }

  /// Joins a row's state with that of other keys, whose base is -inf if they were not seen. Returns
  /// what the sums of both have to be multiplied by.
  __device__ __forceinline__ float2 join(int half, float other_base, float other_sum) {
    const float mine = seen(half) ? base[half] : -INFINITY;
    const float joint = fmaxf(mine, other_base);
    if (joint == -INFINITY) {  // no key, or none that is a number
      sum[half] += other_sum;
      return {0.0f, 0.0f};
    }
    const float2 weight{exp2_fast(mine - joint), exp2_fast(other_base - joint)};
    base[half] = joint;
    sum[half] = __fmul_rn(weight.x, sum[half]) + __fmul_rn(weight.y, other_sum);
    return weight;
  }

 private:
  /// One warp has a scheduler for itself here, so what does not depend on each other is kept apart:
  /// both rows, and several maxima and sums of each.
  static constexpr int kApart = 4;

  /// The largest of this thread's scores of each row.
  template <int kCount>
  __device__ __forceinline__ void find_tops(const float (&score)[kCount], float (&top)[2]) const {
    constexpr int kGroups = kCount / 4;
    static_assert(kGroups % kApart == 0);
    float part[2][kApart];
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float larger = fmaxf(score[j * 4 + 2 * half], score[j * 4 + 2 * half + 1]);
        float& mine = part[half][j % kApart];
        mine = j < kApart ? larger : fmaxf(mine, larger);
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      top[half] = fmaxf(fmaxf(part[half][0], part[half][1]), fmaxf(part[half][2], part[half][3]));
  }

  /// The same, or zero where all of them are less. From zero up, floats are in order as integers,
  /// and of these one instruction compares three.
  template <int kCount>
  __device__ __forceinline__ void find_bounds(const float (&score)[kCount],
                                              float (&bound)[2]) const {
    int part[2][kApart] = {};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int& mine = part[half][j % kApart];
        mine = __vimax3_s32(mine, __float_as_int(score[j * 4 + 2 * half]),
                            __float_as_int(score[j * 4 + 2 * half + 1]));
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      bound[half] = __int_as_float(
          max(__vimax3_s32(part[half][0], part[half][1], part[half][2]), part[half][3]));
  }

  /// Whether a weight would be too large.
  __device__ __forceinline__ bool are_beyond(const float (&top)[2],
                                             const Exponents& exponents) const {
    return tile::agreed(top[0] * exponents.scale > base[0] + kSlack |
                        top[1] * exponents.scale > base[1] + kSlack);
  }

  /// Where a row's base goes for its largest score, which gets a weight of 7/8, exact in 16 bits.
  /// Where nearly all scores of a row are alike, others are somewhat above the first: just above
  /// one, all their weights would be rounded alike, by up to twice as much as just below it. Under
  /// a cap that saturates, most scores are at it, whatever the first is. So the weight there is
  /// exact too, one of four bits, and that of the first is what this leaves it below 15/16.
  __device__ __forceinline__ static float base_of(float top, const Exponents& exponents) {
    constexpr float kAbove = 0.19264507794f, kFar = 120.0f;  // two to that is finite
    const float exponent = top * exponents.scale;
    const float below = exponents.ceiling - exponent;
    if (exponents.ceiling == INFINITY || !(below < kFar)) return exponent + kAbove;
    const int weight = __float_as_int(0.9375f * exp2_fast(below)) & ~0 << 20;
    return exponents.ceiling - __log2f(__int_as_float(weight));
  }

  __device__ __forceinline__ static float of_quad(float top) {
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    return fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  }

  __device__ __forceinline__ void move_bases(const float (&top)[2], const Exponents& exponents,
                                             const auto& rescale) {
    float shrink[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      shrink[half] = move(half, base_of(of_quad(top[half]), exponents));
    rescale(shrink);
  }

  template <int kCount>
  __device__ __forceinline__ void weigh(float (&score)[kCount], const Exponents& exponents,
                                        float (&total)[2]) {
    weigh(score, total, [&](float x, float base) { return fmaf(x, exponents.scale, -base); });
  }

  /// Weights are two to the power of what `exponent` makes of a score and its row's base.
  template <int kCount>
  __device__ __forceinline__ void weigh(float (&score)[kCount], float (&total)[2],
                                        const auto& exponent) {
    float part[2][kApart] = {};
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& left = score[j * 4 + 2 * half];
        float& right = score[j * 4 + 2 * half + 1];
        left = exp2_fast(exponent(left, base[half]));
        right = exp2_fast(exponent(right, base[half]));
        part[half][j % kApart] += left + right;
      }
#pragma unroll
    for (int half = 0; half < 2; ++half)
      total[half] = (part[half][0] + part[half][1]) + (part[half][2] + part[half][3]);
  }

  /// Bases move up by whole numbers to where no weight is above two: nothing is rounded.
  template <int kCount>
  __device__ __forceinline__ void shrink_weights(float (&weight)[kCount], float (&total)[2],
                                                 const auto& rescale) {
    float top[2], shrink[2];
    find_tops(weight, top);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int exponent = min(max((__float_as_int(of_quad(top[half])) >> 23) - 127, 0), 126);
      shrink[half] = __int_as_float((127 - exponent) << 23);
      base[half] += static_cast<float>(exponent);
      sum[half] *= shrink[half];
      total[half] *= shrink[half];
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) weight[i] *= shrink[i / 2 % 2];
    rescale(shrink);
  }

  /// Weights have to fit into f16, and values times weights into f32. A sum that is no number any
  /// more stays so.
  __device__ __forceinline__ bool is_too_large(int half, const float (&total)[2]) const {
    constexpr float kMax = 0x1p14f;
    return !(total[half] <= kMax) & sum[half] == sum[half];
  }

  __device__ __forceinline__ void add(const float (&total)[2]) {
    sum[0] += total[0];
    sum[1] += total[1];
  }

  /// The base becomes what the row's maximum makes it, if that is beyond it.
  __device__ __forceinline__ float move(int half, float to) {
    if (!(to > base[half])) return 1.0f;
    const float shrink = seen(half) ? exp2_fast(base[half] - to) : 1.0f;
    base[half] = to;
    sum[half] *= shrink;
    return shrink;
  }
};

}  // namespace tessera::cuda::sm90::attention
