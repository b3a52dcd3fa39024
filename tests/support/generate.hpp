#pragma once

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

/// What products may be made of. Absent: drawn by the seed.
struct ProductOptions {
  std::optional<bool> sparse_a{}, sparse_b{};
  std::optional<GroupAxis> grouped{};  ///< absent: not grouped
  std::optional<DType> dtype{};
  bool epilogue = true;
  std::int64_t largest = 70;  ///< size of a dimension, about
};

std::unique_ptr<Case<MatmulProblem>> matmul_case(std::uint64_t seed, const ProductOptions& = {});
std::unique_ptr<Case<SddmmProblem>> sddmm_case(std::uint64_t seed, const ProductOptions& = {});
/// Both operands sparse. The output's pattern comes from the library or from `output_for`.
std::unique_ptr<Case<SpgemmProblem>> spgemm_case(std::uint64_t seed, const ProductOptions& = {});
/// A BSR output of the problem at the pattern, with room for it in the case's memory.
BsrMatrix output_for(Case<SpgemmProblem>& c, const Pattern& pattern, DType dtype, DType index);

enum class Presence : std::uint8_t { never, maybe, always };

/// What masks may be made of.
struct MaskOptions {
  std::int64_t smallest_block = 1;
  std::int64_t block_step = 1;             ///< blocks are multiples of it
  std::int64_t block_q = 0, block_kv = 0;  ///< 0: drawn
  /// Whether lists go by head of keys, where they are not for all heads; always: all of them do.
  Presence by_keys = Presence::maybe;
  /// The blocks that lists name, by row and column; empty: drawn.
  std::function<bool(std::int64_t, std::int64_t)> names{};
};

/// What attention may be made of.
struct AttentionOptions {
  std::optional<DType> dtype{};
  Presence mask = Presence::maybe;
  Presence packed_q = Presence::maybe;
  Presence packed_kv = Presence::maybe;
  Presence paged = Presence::maybe;
  Presence positions = Presence::maybe;  ///< causal, windows, q_position, kv_position, ranges
  Presence sinks = Presence::maybe;
  Presence softcap = Presence::maybe;
  bool bad_values = false;  ///< a few NaN and infinities among the visible keys
  bool rising = false;      ///< every 64 keys, scores are twice as large
  bool saturating = false;  ///< scores beyond a small cap, all on one side, but for the first keys'
  bool wide_out = true;     ///< out may be f32 for narrower inputs
  Layout layout = Layout::wild;
  std::int64_t longest = 70;
  std::int64_t max_queries = 0;     ///< of a sequence; 0: as `longest`
  std::int64_t longest_window = 0;  ///< on both sides, always; 0: some, as `longest`
  std::int64_t largest_batch = 3, largest_kv_heads = 3;
  std::int64_t group = 0;  ///< query heads to a head of keys; 0: drawn
  MaskOptions blocks{};
  std::vector<std::int64_t> dims{};  ///< of heads; empty: the usual odd ones
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

/// A pattern with what trips kernels: empty rows and columns, one full row, power-law rows, all,
/// none.
Pattern wild_pattern(Random& random, std::int64_t rows, std::int64_t cols);

/// A BSR matrix with a random pattern, batched in any of the ways that it may be where `batch` > 1.
struct WildBsr {
  BsrMatrix matrix;
  std::vector<Pattern> patterns;  ///< one a batch
};
WildBsr wild_bsr(Random& random, Memory& memory, std::int64_t rows, std::int64_t cols,
                 std::int64_t block_rows, std::int64_t block_cols, DType dtype, std::int64_t batch,
                 bool output);

/// Lists over the blocks of a mask.
BlockMask wild_mask(Random& random, Memory& memory, std::int64_t batch, std::int64_t heads,
                    std::int64_t kv_heads, std::int64_t q_length, std::int64_t kv_length,
                    const MaskOptions& = {});

}  // namespace tessera::generate
