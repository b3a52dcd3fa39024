#pragma once

#include <cstdint>

// Walks: which key tiles an output tile visits, as constexpr arithmetic that the planner, the CPU
// kernels and the GPU kernels share. TESSERA_HD marks functions for host and device.
// TESSERA_EITHER_SIDE before a template allows arguments that only one side can call.
#if defined(__CUDACC__)
#define TESSERA_HD __host__ __device__
#define TESSERA_EITHER_SIDE _Pragma("nv_exec_check_disable")
#else
#define TESSERA_HD
#define TESSERA_EITHER_SIDE
#endif
// Before a loop: #pragma unroll in device code. A host compiler would warn about the pragma.
#if defined(__CUDA_ARCH__)
#define TESSERA_PRAGMA(text) _Pragma(#text)
#define TESSERA_UNROLL(count) TESSERA_PRAGMA(unroll count)
#else
#define TESSERA_UNROLL(count)
#endif

namespace tessera::planning {

template <class T>
TESSERA_HD constexpr T min_of(T a, T b) {
#if defined(__CUDA_ARCH__)
  return min(a, b);  // one instruction, even if the code also compares a and b
#else
  return a < b ? a : b;
#endif
}
template <class T>
TESSERA_HD constexpr T max_of(T a, T b) {
#if defined(__CUDA_ARCH__)
  return max(a, b);
#else
  return a < b ? b : a;
#endif
}

/// A half-open range of key indices within a sequence.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
  TESSERA_HD constexpr bool empty() const { return begin >= end; }
  TESSERA_HD constexpr std::int64_t size() const { return empty() ? 0 : end - begin; }
  friend TESSERA_HD constexpr bool operator==(const KeyRange&, const KeyRange&) = default;
};

TESSERA_HD constexpr KeyRange intersect(KeyRange a, KeyRange b) {
  return {a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

/// Which keys a query sees, apart from the block mask: positions, windows and the range of valid
/// keys.
struct Visibility {
  std::int64_t q_position = 0, kv_position = 0;  // of the first query and the first key
  KeyRange used;                   // valid keys: kv_begin and kv_end, clamped to [0, kv_length]
  std::int64_t window_left = -1;   // -1: no limit
  std::int64_t window_right = -1;  // -1: no limit; 0: causal

  /// Keys that query `row` of the sequence sees.
  TESSERA_HD constexpr KeyRange of_row(std::int64_t row) const {
    const std::int64_t at = q_position + row - kv_position;
    KeyRange seen = used;
    // Subtracts positions, as adding a large width could overflow.
    if (window_left >= 0 && at - seen.begin > window_left) seen.begin = at - window_left;
    if (window_right >= 0 && seen.end - at - 1 > window_right) seen.end = at + window_right + 1;
    return seen;
  }
  /// Keys that at least one row of [first, last] sees: those that a tile of rows has to visit.
  TESSERA_HD constexpr KeyRange of_any(std::int64_t first, std::int64_t last) const {
    return {of_row(first).begin, of_row(last).end};
  }
  /// Keys that every row of [first, last] sees: tiles inside this range need no masking.
  TESSERA_HD constexpr KeyRange of_all(std::int64_t first, std::int64_t last) const {
    return {of_row(last).begin, of_row(first).end};
  }
  /// The transposed rule, for walks over queries: "row" `key` sees the queries that see this key.
  TESSERA_HD constexpr Visibility from_keys(std::int64_t q_length) const {
    return {kv_position, q_position, {0, q_length}, window_right, window_left};
  }
};

/// A word with bits [begin, end) set. Bits outside of [0, 64) are ignored.
template <class Int>
TESSERA_HD constexpr std::uint64_t bits_between(Int begin, Int end) {
  const Int first = begin > 0 ? begin : 0, last = end < 64 ? end : 64;
  return first < last ? ~std::uint64_t{0} >> (64 - (last - first)) << first : 0;
}

/// `Visibility` in 32 bits, for sequences of up to 2^29 queries and keys.
struct NarrowSight {
  std::int32_t begin = 0, end = 0;   // valid keys
  std::int32_t left = 0, right = 0;  // query i sees the valid keys in [i + left, i + right)

  /// Positions must be in [-2^61, 2^61].
  TESSERA_HD static constexpr NarrowSight of(const Visibility& sight) {
    constexpr std::int64_t kFar = std::int64_t{1} << 29, kWidest = std::int64_t{1} << 62;
    const auto clamped = [](std::int64_t x) {
      return static_cast<std::int32_t>(x < -kFar ? -kFar : x > kFar ? kFar : x);
    };
    const auto width = [](std::int64_t window) { return window < kWidest ? window : kWidest; };
    const std::int64_t shift = sight.q_position - sight.kv_position;
    return {clamped(sight.used.begin), clamped(sight.used.end),
            clamped(sight.window_left < 0 ? -kFar : shift - width(sight.window_left)),
            clamped(sight.window_right < 0 ? kFar : shift + width(sight.window_right) + 1)};
  }
  /// Query `row` sees [begin_of(row), end_of(row)).
  TESSERA_HD constexpr std::int32_t begin_of(std::int32_t row) const {
    return begin > row + left ? begin : row + left;
  }
  TESSERA_HD constexpr std::int32_t end_of(std::int32_t row) const {
    return end < row + right ? end : row + right;
  }
  /// The keys that query `row` sees among the 64 keys from `key` on, as a bitmask. No key may
  /// exceed 2^30 + 64.
  TESSERA_HD constexpr std::uint64_t bits_of(std::int32_t row, std::int32_t key) const {
    return bits_between(begin_of(row) - key, end_of(row) - key);
  }
};

/// One step of a walk over keys.
struct KeyStep {
  std::int64_t begin = 0;        // first key
  std::int64_t count = 0;        // keys
  bool boundary = false;         // positions or the key range hide some (row, key) pairs
  std::int64_t bit_tile = -1;    // element mask of a partial block; -1: none
  std::int64_t block_begin = 0;  // first key of that block: column 0 of the bit tile
};

/// Walk without a block mask: the range of visible keys in steps of `tile` keys, aligned to
/// multiples of `tile`.
struct RangeWalk {
  Visibility sight;
  std::int64_t first_row = 0, last_row = 0;
  std::int64_t tile = 64;

  TESSERA_HD constexpr KeyRange keys() const { return sight.of_any(first_row, last_row); }
  TESSERA_HD constexpr std::int64_t steps() const {
    const KeyRange range = keys();
    return range.empty() ? 0 : (range.end + tile - 1) / tile - range.begin / tile;
  }
  TESSERA_HD constexpr KeyStep step(std::int64_t index) const;
};

/// The step for the keys of `block` that rows [first, last] see; its count is 0 if they see none.
TESSERA_HD constexpr KeyStep clip_step(const Visibility& sight, std::int64_t first,
                                       std::int64_t last, KeyRange block) {
  const KeyRange any = intersect(block, sight.of_any(first, last));
  if (any.empty()) return {block.begin, 0, false, -1, block.begin};
  const KeyRange all = sight.of_all(first, last);
  return {any.begin, any.size(), any.begin < all.begin || any.end > all.end, -1, block.begin};
}

TESSERA_HD constexpr KeyStep RangeWalk::step(std::int64_t index) const {
  const std::int64_t begin = (keys().begin / tile + index) * tile;
  return clip_step(sight, first_row, last_row, {begin, begin + tile});
}

/// The location of a key in a paged sequence: the entry in the page table, and the slot in the
/// page.
struct PagePlace {
  std::int64_t page = 0, slot = 0;
};
TESSERA_HD constexpr PagePlace page_place(std::int64_t key, std::int64_t page_size) {
  return {key / page_size, key % page_size};
}

}  // namespace tessera::planning
