#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/memory.hpp"

// Seeded problems that try to break the library: see Memory for layouts, padding and poison. What a
// problem does not select (unseen keys, unused pages, rows and columns that meet no stored block)
// is NaN as well.
namespace tessera::generate {

/// A generated problem with the memory it lives in. Not copyable: tensors point into the memory.
template <class Problem>
struct Case {
  Random random;
  Memory memory{random};
  Problem problem{};
  /// Former contents of the output where beta reads them.
  std::optional<oracle::DenseArray> former{};
  std::string text{};  ///< which generator and seed made it, and the problem in short

  explicit Case(std::uint64_t seed) : random(seed) {}
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  const oracle::DenseArray* former_values() const { return former ? &*former : nullptr; }
};

/// How many of `count` random problems a test tries: with sanitizers, which make each several times
/// as slow, a quarter.
constexpr std::uint64_t problems(std::uint64_t count) {
#ifdef __SANITIZE_ADDRESS__
  return (count + 3) / 4;
#else
  return count;
#endif
}

/// Options of random products. Absent ones are drawn by the seed.
struct ProductOptions {
  std::optional<bool> sparse_a{}, sparse_b{};
  std::optional<GroupAxis> grouped{};  ///< absent: not grouped
  std::optional<DType> dtype{};
  bool fp8 = false;  ///< matmul: operands in e4m3 or e5m2, with or without factors of any form
  bool epilogue = true;
  std::int64_t largest = 70;  ///< approximate largest size of a dimension
};

std::unique_ptr<Case<MatmulProblem>> matmul_case(std::uint64_t seed, const ProductOptions& = {});
std::unique_ptr<Case<SddmmProblem>> sddmm_case(std::uint64_t seed, const ProductOptions& = {});
/// Both operands sparse. The output's pattern comes from the library or from `output_for`.
std::unique_ptr<Case<SpgemmProblem>> spgemm_case(std::uint64_t seed, const ProductOptions& = {});
/// A BSR output for the problem with the given pattern, in the case's memory.
BsrMatrix output_for(Case<SpgemmProblem>& c, const Pattern& pattern, DType dtype, DType index);

enum class Presence : std::uint8_t { never, maybe, always };

/// Options of random masks.
struct MaskOptions {
  std::int64_t smallest_block = 1;
  std::int64_t block_step = 1;             ///< blocks are multiples of it
  std::int64_t block_q = 0, block_kv = 0;  ///< 0: drawn
  /// Whether lists are per KV head instead of per head, if not one for all; always: all of them
  /// are.
  Presence by_keys = Presence::maybe;
  /// The blocks that lists name, by row and column; empty: drawn.
  std::function<bool(std::int64_t, std::int64_t)> names{};
};

/// Options of random attention problems.
struct AttentionOptions {
  std::optional<DType> dtype{};
  Presence mask = Presence::maybe;
  Presence packed_q = Presence::maybe;
  Presence packed_kv = Presence::maybe;
  Presence paged = Presence::maybe;
  Presence positions = Presence::maybe;  ///< causal, windows, q_position, kv_position, ranges
  Presence sinks = Presence::maybe;
  Presence softcap = Presence::maybe;
  Presence narrow_keys = Presence::never;  ///< k and v in e4m3, with or without scales
  Presence v_by_keys = Presence::never;    ///< keys of v contiguous, not rows; not with pages
  bool bad_values = false;                 ///< a few NaN and infinities among the visible keys
  bool rising = false;                     ///< scores double every 64 keys
  bool saturating = false;  ///< scores far above a small softcap, except those of the first keys
  bool wide_out = true;     ///< out may be f32 for narrower inputs
  Layout layout = Layout::wild;
  std::int64_t longest = 70;
  std::int64_t max_queries = 0;     ///< per sequence; 0: `longest`
  std::int64_t longest_window = 0;  ///< on both sides, always; 0: sometimes, up to `longest`
  std::int64_t largest_batch = 3, largest_kv_heads = 3;
  std::int64_t group = 0;  ///< query heads per KV head; 0: drawn
  std::int64_t page = 0;   ///< keys per page; 0: drawn
  MaskOptions blocks{};
  std::vector<std::int64_t> dims{};  ///< head dimensions; empty: a default set of odd ones
};

std::unique_ptr<Case<AttentionProblem>> attention_case(std::uint64_t seed,
                                                       const AttentionOptions& = {});
/// forward.out and forward.lse hold the oracle's results.
std::unique_ptr<Case<AttentionBackwardProblem>> backward_case(std::uint64_t seed,
                                                              const AttentionOptions& = {});
/// `former` stays empty; `expected` is computed before the run, since out may be one of outs.
struct MergeCase : Case<MergeStatesProblem> {
  using Case::Case;
  oracle::Merged expected;
};
std::unique_ptr<MergeCase> merge_case(std::uint64_t seed);

/// A pattern that is difficult for kernels: empty rows and columns, one full row, power-law rows,
/// all blocks or none.
Pattern wild_pattern(Random& random, std::int64_t rows, std::int64_t cols);

/// A BSR matrix with a random pattern, in any of the batched forms if `batch` > 1.
struct WildBsr {
  BsrMatrix matrix;
  std::vector<Pattern> patterns;  ///< one per batch
};
WildBsr wild_bsr(Random& random, Memory& memory, std::int64_t rows, std::int64_t cols,
                 std::int64_t block_rows, std::int64_t block_cols, DType dtype, std::int64_t batch,
                 bool output);

/// Lists over the blocks of a mask.
BlockMask wild_mask(Random& random, Memory& memory, std::int64_t batch, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t q_length, std::int64_t kv_length,
                    const MaskOptions& = {});

}  // namespace tessera::generate
