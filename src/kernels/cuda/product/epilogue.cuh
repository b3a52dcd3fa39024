#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include <tessera/matmul.hpp>

#include "src/kernels/cuda/common/element.cuh"
#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/common/lanes.cuh"
#include "src/kernels/cuda/common/plane.cuh"
#include "src/kernels/cuda/product/activation.cuh"

// The epilogue, from accumulators to the result: out = activation(alpha * sum + beta * c + bias).
namespace tessera::cuda::product {

struct Finish {
  Plane out, c, bias;  // bias: stride 0 along the dimension that it is broadcast over
  float alpha = 1, beta = 0;
  Activation activation = Activation::none;
  bool wide = false;  // rows of a 16-bit out support 16-byte stores
  bool tall = false;  // columns of a 16-bit out support 16-byte stores

  __host__ __device__ bool plain() const {
    return alpha == 1.0f && !c.data && !bias.data && activation == Activation::none;
  }
};

/// One 16-byte store, in assembly because the compiler splits some of them.
__device__ __forceinline__ void store_16(void* to, std::uint32_t a, std::uint32_t b,
                                         std::uint32_t c, std::uint32_t d) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

/// Rounds 64 x kN accumulators and stores them 16 bytes at a time: no arithmetic; all columns lie
/// inside the result.
template <DType kOut, int kN>
__device__ __forceinline__ void store_plain(const Finish& finish, const float (&sum)[kN / 2],
                                            int row, int col, int batch, std::int64_t m,
                                            int thread) {
  const Fragment fragment(thread);
  const int quad = fragment.lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row + fragment.row(half);
    auto* line = static_cast<std::uint16_t*>(finish.out.data) + finish.out.at(r, col, batch);
#pragma unroll
    for (int set = 0; set < kN / 32; ++set) {
      std::uint32_t pair[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const int i = (set * 4 + g) * 4 + half * 2;
        pair[g] = pack(kOut, sum[i], sum[i + 1]);
      }
      // Each lane gets the four pairs of one group of eight columns.
      transpose_in_quad(pair, quad);
      if (r < m) store_16(line + (set * 4 + quad) * 8, pair[0], pair[1], pair[2], pair[3]);
    }
  }
}

/// Transposes an 8 x 8 block of 16-bit elements, a pair per lane, within the warp.
__device__ __forceinline__ std::uint32_t transpose(std::uint32_t pair) {
  std::uint32_t transposed;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(pair));
  return transposed;
}

/// The same for a result with contiguous columns: 8 x 8 blocks are transposed within the warp, then
/// eight rows of a column are stored together. All rows lie inside the result.
template <DType kOut, int kN>
__device__ __forceinline__ void store_plain_transposed(const Finish& finish,
                                                       const float (&sum)[kN / 2], int row, int col,
                                                       int batch, std::int64_t n, int thread) {
  const Fragment fragment(thread);
  const int quad = fragment.lane % 4;
#pragma unroll
  for (int set = 0; set < kN / 16; ++set) {
    std::uint32_t pair[4];  // (group, half) in order
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = (set * 2 + i / 2) * 4 + i % 2 * 2;
      pair[i] = transpose(pack(kOut, sum[at], sum[at + 1]));
    }
    transpose_in_quad(pair, quad);
    const int c = col + (set * 2 + quad / 2) * 8 + fragment.lane / 4;
    const int r = row + fragment.warp * 16 + quad % 2 * 8;
    if (c < n)
      store_16(static_cast<std::uint16_t*>(finish.out.data) + finish.out.at(r, c, batch), pair[0],
               pair[1], pair[2], pair[3]);
  }
}

/// Copies the accumulators of kSets * 16 columns, from column `set` * 16 on, to `x`.
template <int kN, int kSets>
__device__ __forceinline__ void pick_sets(const float (&sum)[kN / 2], int set,
                                          float (&x)[kSets * 8]) {
  [&]<int... kSet>(std::integer_sequence<int, kSet...>) {
    const auto take = [&]<int kThis>(std::integral_constant<int, kThis>) {
#pragma unroll
      for (int i = 0; i < kSets * 8; ++i) x[i] = sum[kThis * kSets * 8 + i];
      return true;
    };
    static_cast<void>(((set == kSet * kSets && take(std::integral_constant<int, kSet>{})) || ...));
  }
  (std::make_integer_sequence<int, kN / 16 / kSets>{});
}

/// Transposes an 8 x 8 block of f32, a pair per lane, as two blocks of 16-bit halves.
__device__ __forceinline__ void transpose(float& first, float& second) {
  const std::uint32_t a = __float_as_uint(first), b = __float_as_uint(second);
  const std::uint32_t low = transpose(__byte_perm(a, b, 0x5410)),
                      high = transpose(__byte_perm(a, b, 0x7632));
  first = __uint_as_float(__byte_perm(low, high, 0x5410));
  second = __uint_as_float(__byte_perm(low, high, 0x7632));
}

/// Eight adjacent elements of a plane, in memory layout.
struct Eight {
  uint4 low, high;  // f32 uses both

  __device__ __forceinline__ static Eight load(const Plane& plane, const char* at) {
    Eight eight{};
    const auto* from = reinterpret_cast<const uint4*>(at);
    eight.low = from[0];
    if (plane.dtype == DType::f32) eight.high = from[1];
    return eight;
  }
  /// x += scale * this.
  __device__ __forceinline__ void add(const Plane& plane, float scale, float* x) const {
    if (plane.dtype == DType::f32) {
      const std::uint32_t got[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i] += scale * __uint_as_float(got[i]);
    } else {
      const std::uint32_t pair[4] = {low.x, low.y, low.z, low.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 got = unpack(plane.dtype, pair[i]);
        x[i * 2] += scale * got.x;
        x[i * 2 + 1] += scale * got.y;
      }
    }
  }
  __device__ __forceinline__ static void store(const Plane& plane, char* at, const float* x) {
    if (plane.dtype == DType::f32) {
      const auto bits = [&](int i) { return __float_as_uint(x[i]); };
      store_16(at, bits(0), bits(1), bits(2), bits(3));
      store_16(at + 16, bits(4), bits(5), bits(6), bits(7));
    } else {
      const auto pair = [&](int i) { return pack(plane.dtype, x[i], x[i + 1]); };
      store_16(at, pair(0), pair(2), pair(4), pair(6));
    }
  }
};

/// Finishes and stores eight sums that are adjacent in a row of the result (in a column if
/// `transposed`), where `planes_in_eights` holds.
__device__ __forceinline__ void finish_eight(const Finish& finish, float (&x)[8], bool transposed,
                                             int row, int col, int batch) {
  const auto at = [&](const Plane& plane) {
    return static_cast<char*>(plane.data) + plane.at(row, col, batch) * plane.element_bytes();
  };
#pragma unroll
  for (float& value : x) value *= finish.alpha;
  if (finish.c.data) Eight::load(finish.c, at(finish.c)).add(finish.c, finish.beta, x);
  if (finish.bias.data) {
    if ((transposed ? finish.bias.row : finish.bias.col) == 0) {
      const float value = finish.bias.load_at(at(finish.bias));
#pragma unroll
      for (float& sum : x) sum += value;
    } else {
      Eight::load(finish.bias, at(finish.bias)).add(finish.bias, 1.0f, x);
    }
  }
  activate(finish.activation, x);
  Eight::store(finish.out, at(finish.out), x);
}

/// Finishes and stores one sum.
__device__ __forceinline__ void finish_one(const Finish& finish, float sum, int row, int col,
                                           int batch) {
  float x[1] = {finish.alpha * sum};
  const auto at = [&](const Plane& plane) { return plane.at(row, col, batch); };
  if (finish.c.data) x[0] += finish.beta * finish.c.load(at(finish.c));
  if (finish.bias.data) x[0] += finish.bias.load(at(finish.bias));
  activate(finish.activation, x);
  finish.out.store(at(finish.out), x[0]);
}

/// The full epilogue with 16-byte accesses: accumulators are exchanged within the warp until a lane
/// holds eight adjacent elements of a row, or of a column (kTransposed); all of them lie inside the
/// result. The loop is not unrolled, because arithmetic for every accumulator would exceed the
/// instruction cache; pick_sets selects each iteration's accumulators by a switch, since registers
/// cannot be indexed.
template <bool kTransposed, int kN, int kSets>
__device__ __forceinline__ void store_eights(const Finish& finish, const float (&sum)[kN / 2],
                                             int row, int col, int batch, std::int64_t m,
                                             std::int64_t n, int thread) {
  const Fragment fragment(thread);
  const int quad = fragment.lane % 4, line = fragment.lane / 4;
  const int r = row + fragment.warp * 16 + quad % 2 * 8 + (kTransposed ? 0 : line);
  const int c = col + quad / 2 * 8 + (kTransposed ? line : 0);
  const auto at = [&](const Plane& plane) {
    return static_cast<char*>(plane.data) + plane.at(r, c, batch) * plane.element_bytes();
  };
  const auto next_set = [](const Plane& plane) { return plane.col * 16 * plane.element_bytes(); };
  const auto inside = [&](int set) { return r < m && c + set * 16 < n; };
  char* out = at(finish.out);
  const char *old_c = at(finish.c), *bias = at(finish.bias);
  const bool one_bias = (kTransposed ? finish.bias.row : finish.bias.col) == 0;
  constexpr bool kAhead = kSets > 1;
  Eight ahead[kSets] = {};
  const auto fetch_c = [&](int first) {
#pragma unroll
    for (int s = 0; s < kSets; ++s, old_c += next_set(finish.c))
      if (inside(first + s)) ahead[s] = Eight::load(finish.c, old_c);
  };
  if (kAhead && finish.c.data) fetch_c(0);
#pragma unroll 1
  for (int set = 0; set < kN / 16; set += kSets) {
    float x[kSets * 8];
    pick_sets<kN, kSets>(sum, set, x);
#pragma unroll
    for (int s = 0; s < kSets; ++s) {
      if constexpr (kTransposed) {
#pragma unroll
        for (int i = s * 8; i < s * 8 + 8; i += 2) transpose(x[i], x[i + 1]);
      }
      transpose_in_quad<2>(reinterpret_cast<float(&)[8]>(x[s * 8]), quad);
    }
#pragma unroll
    for (float& value : x) value *= finish.alpha;
    if (finish.c.data) {
      if (!kAhead) fetch_c(set);
#pragma unroll
      for (int s = 0; s < kSets; ++s) ahead[s].add(finish.c, finish.beta, x + s * 8);
      if (kAhead && set + kSets < kN / 16) fetch_c(set + kSets);
    }
    if (finish.bias.data) {
#pragma unroll
      for (int s = 0; s < kSets; ++s, bias += next_set(finish.bias)) {
        if (!inside(set + s)) continue;
        if (one_bias) {
          const float value = finish.bias.load_at(bias);
#pragma unroll
          for (int i = 0; i < 8; ++i) x[s * 8 + i] += value;
        } else {
          Eight::load(finish.bias, bias).add(finish.bias, 1.0f, x + s * 8);
        }
      }
    }
    activate(finish.activation, x);
#pragma unroll
    for (int s = 0; s < kSets; ++s, out += next_set(finish.out))
      if (inside(set + s)) Eight::store(finish.out, out, x + s * 8);
  }
}

/// The full epilogue for any strides and edges, one element at a time.
template <int kN>
__device__ __forceinline__ void store_general(const Finish& finish, const float (&sum)[kN / 2],
                                              int row, int col, int batch, std::int64_t m,
                                              std::int64_t n, int thread) {
  const Fragment fragment(thread);
#pragma unroll 1
  for (int set = 0; set < kN / 16; ++set) {
    float x[8];
    pick_sets<kN, 1>(sum, set, x);
    const auto row_of = [&](int i) { return row + fragment.row(i / 2 % 2); };
    const auto col_of = [&](int i) { return col + fragment.col(set * 2 + i / 4) + i % 2; };
    const auto inside = [&](int i) { return row_of(i) < m && col_of(i) < n; };
    const auto at = [&](const Plane& plane, int i) {
      return plane.at(row_of(i), col_of(i), batch);
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] *= finish.alpha;
      if (!inside(i)) continue;
      if (finish.c.data) x[i] += finish.beta * finish.c.load(at(finish.c, i));
      if (finish.bias.data) x[i] += finish.bias.load(at(finish.bias, i));
    }
    activate(finish.activation, x);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (inside(i)) finish.out.store(at(finish.out, i), x[i]);
  }
}

/// Whether the groups of eight elements (along a row, or a column) of a tile that begins at (row,
/// col) are 16-byte aligned.
__device__ __forceinline__ bool lies_in_eights(const Plane& plane, bool transposed, int row,
                                               int col, int batch) {
  const std::int64_t along = transposed ? plane.row : plane.col,
                     across = transposed ? plane.col : plane.row;
  const std::int64_t first = reinterpret_cast<std::int64_t>(plane.data) +
                             plane.at(row, col, batch) * plane.element_bytes();
  return along == 1 && first % 16 == 0 && across * plane.element_bytes() % 16 == 0;
}

/// The same of all operands of an epilogue.
__device__ __forceinline__ bool planes_in_eights(const Finish& finish, bool transposed, int row,
                                                 int col, int batch) {
  const auto ready = [&](const Plane& plane) {
    return !plane.data || lies_in_eights(plane, transposed, row, col, batch);
  };
  const bool one_bias = (transposed ? finish.bias.row : finish.bias.col) == 0;
  return ready(finish.out) && ready(finish.c) && (one_bias || ready(finish.bias));
}

/// Whether `store_eights` supports a tile of kRows rows.
template <int kN, int kRows>
__device__ __forceinline__ bool supports_eights(const Finish& finish, bool transposed, int row,
                                                int col, int batch, std::int64_t m,
                                                std::int64_t n) {
  return (transposed ? row + kRows <= m : col + kN <= n) &&
         planes_in_eights(finish, transposed, row, col, batch);
}

/// Stores kRows x kN accumulators: 64 rows of a warpgroup, or 16 of a warp, whose threads are then
/// its lanes. Their first element is (row, col) of the result. Elements from row m or column n on
/// are skipped. Arithmetic handles kSets * 16 columns per iteration: more hide more memory latency,
/// fewer need fewer registers.
template <int kN, int kSets, int kRows = 64>
__device__ __forceinline__ void store_finished(const Finish& finish, float (&sum)[kN / 2], int row,
                                               int col, int batch, std::int64_t m, std::int64_t n,
                                               int thread) {
  if (supports_eights<kN, kRows>(finish, false, row, col, batch, m, n)) {
    store_eights<false, kN, kSets>(finish, sum, row, col, batch, m, n, thread);
  } else if (supports_eights<kN, kRows>(finish, true, row, col, batch, m, n)) {
    store_eights<true, kN, kSets>(finish, sum, row, col, batch, m, n, thread);
  } else {
    store_general<kN>(finish, sum, row, col, batch, m, n, thread);
  }
}

/// The same, with code of its own for results without arithmetic.
template <int kN, int kSets = (kN >= 32 ? 2 : 1), int kRows = 64>
__device__ __forceinline__ void store_tile(const Finish& finish, float (&sum)[kN / 2], int row,
                                           int col, int batch, std::int64_t m, std::int64_t n,
                                           int thread) {
  static_assert(kN % 16 == 0);
  if constexpr (kN % 32 == 0) {
    if (finish.plain()) {
      const bool wide = finish.wide && col % 8 == 0 && col + kN <= n;
      const bool tall = finish.tall && row % 8 == 0 && row + kRows <= m;
      if (wide && finish.out.dtype == DType::bf16)
        return store_plain<DType::bf16, kN>(finish, sum, row, col, batch, m, thread);
      if (wide) return store_plain<DType::f16, kN>(finish, sum, row, col, batch, m, thread);
      if (tall && finish.out.dtype == DType::bf16)
        return store_plain_transposed<DType::bf16, kN>(finish, sum, row, col, batch, n, thread);
      if (tall)
        return store_plain_transposed<DType::f16, kN>(finish, sum, row, col, batch, n, thread);
    }
  }
  store_finished<kN, kSets, kRows>(finish, sum, row, col, batch, m, n, thread);
}

}  // namespace tessera::cuda::product
