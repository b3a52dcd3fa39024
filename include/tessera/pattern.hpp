#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>
#include <tessera/export.hpp>
#include <tessera/host_tensor.hpp>
#include <tessera/tensor.hpp>

/// Patterns on the host: build, convert, read, inspect.
namespace tessera {

/// Which blocks exist: a boolean matrix of blocks as sorted lists, one a row. Owning, host.
struct TESSERA_EXPORT Pattern {
  std::int64_t rows = 0, cols = 0;    ///< in blocks
  std::vector<std::int64_t> offsets;  ///< rows + 1
  std::vector<std::int64_t> indices;  ///< sorted and unique within a row

  std::int64_t stored() const { return static_cast<std::int64_t>(indices.size()); }
  double density() const;
  bool contains(std::int64_t row, std::int64_t col) const;
  friend bool operator==(const Pattern&, const Pattern&) = default;
};

/// Throws `Error` unless offsets and indices are what `Pattern` promises.
TESSERA_EXPORT void validate(const Pattern& pattern);

/// The same blocks listed by column: entry t of column j is the block at row row_indices[t] and
/// stored position positions[t]. Values stay where they are.
struct TransposedLists {
  std::vector<std::int64_t> offsets;  ///< cols + 1
  std::vector<std::int64_t> row_indices;
  std::vector<std::int64_t> positions;
};
TESSERA_EXPORT TransposedLists transposed_lists(const Pattern& pattern);
TESSERA_EXPORT Pattern transpose(const Pattern& pattern);

/// A coarser pattern: block (i, j) is stored where any of its row_factor x col_factor blocks is.
TESSERA_EXPORT Pattern coarsen(const Pattern& pattern, std::int64_t row_factor,
                               std::int64_t col_factor);
/// A finer one: every stored block becomes row_factor x col_factor stored blocks.
TESSERA_EXPORT Pattern refine(const Pattern& pattern, std::int64_t row_factor,
                              std::int64_t col_factor);

// ---- BSR matrices ------------------------------------------------------------------------------

/// A BSR matrix in host memory that owns its three tensors; `view()` is what problems take.
struct TESSERA_EXPORT HostBsr {
  HostTensor values, row_offsets, col_indices;
  std::int64_t rows = 0, cols = 0;

  BsrMatrix view() const { return {values, row_offsets, col_indices, rows, cols}; }
  operator BsrMatrix() const { return view(); }  // NOLINT: meant to convert
};

/// The pattern with zero values.
TESSERA_EXPORT HostBsr make_bsr(const Pattern& pattern, std::int64_t block_rows,
                                std::int64_t block_cols, DType dtype, DType index = DType::i32);
/// The pattern of a matrix in host memory (unbatched).
TESSERA_EXPORT Pattern pattern_of(const BsrMatrix& matrix);

/// Keeps each block that has an element with |x| > threshold.
TESSERA_EXPORT HostBsr bsr_from_dense(const Tensor& dense, std::int64_t block_rows,
                                      std::int64_t block_cols, double threshold = 0.0,
                                      DType index = DType::i32);
/// Keeps the share `density` of all blocks that has the largest sum of squares (ties: first in row
/// order). NaN elements are refused, as their blocks have no order.
TESSERA_EXPORT HostBsr bsr_keep_densest(const Tensor& dense, std::int64_t block_rows,
                                        std::int64_t block_cols, double density,
                                        DType index = DType::i32);
/// Takes the blocks of a given pattern.
TESSERA_EXPORT HostBsr bsr_from_dense(const Tensor& dense, const Pattern& pattern,
                                      std::int64_t block_rows, std::int64_t block_cols,
                                      DType index = DType::i32);
/// Writes every element of `dense` [rows, cols]: stored blocks and zeros.
TESSERA_EXPORT void bsr_to_dense(const BsrMatrix& matrix, const Tensor& dense);

/// Elements as triples, any order; equal coordinates add up (SciPy's rule).
struct Coo {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::int64_t> row, col;
  std::vector<double> value;
};
TESSERA_EXPORT HostBsr bsr_from_coo(const Coo& coo, std::int64_t block_rows,
                                    std::int64_t block_cols, DType dtype = DType::f32,
                                    DType index = DType::i32);
/// Elements by row in SciPy's CSR order: offsets [rows + 1], columns, values. Unsorted and
/// duplicate columns are allowed, as in SciPy; duplicates add up.
TESSERA_EXPORT HostBsr bsr_from_csr(std::int64_t rows, std::int64_t cols,
                                    const std::vector<std::int64_t>& offsets,
                                    const std::vector<std::int64_t>& columns,
                                    const std::vector<double>& values, std::int64_t block_rows,
                                    std::int64_t block_cols, DType dtype = DType::f32,
                                    DType index = DType::i32);
/// The blocks that hold at least one of the elements.
TESSERA_EXPORT Pattern pattern_of(const Coo& coo, std::int64_t block_rows, std::int64_t block_cols);
/// From a u8 tensor [rows, cols], a block each: stored where nonzero.
TESSERA_EXPORT Pattern pattern_from_bool(const Tensor& blocks);

// ---- Block masks -------------------------------------------------------------------------------

/// A block mask in host memory that owns its tensors.
struct TESSERA_EXPORT HostBlockMask {
  std::int64_t block_q = 0, block_kv = 0;
  HostTensor full_counts, full_indices;        // counts + indices form
  HostTensor partial_counts, partial_indices;  // empty where every block is full
  HostTensor bit_tile, bits;

  BlockMask view() const;
};

/// Every stored block is full. `patterns` holds one pattern for all, one a head, or one a (batch,
/// head) in that order: batch * heads of them.
TESSERA_EXPORT HostBlockMask make_block_mask(const std::vector<Pattern>& patterns,
                                             std::int64_t batch, std::int64_t heads,
                                             std::int64_t block_q, std::int64_t block_kv);
inline HostBlockMask make_block_mask(const Pattern& pattern, std::int64_t block_q,
                                     std::int64_t block_kv) {
  return make_block_mask(std::vector<Pattern>{pattern}, 1, 1, block_q, block_kv);
}
/// From a u8 tensor [q_length, kv_length] or [batch|1, heads|1, q_length, kv_length], an element
/// each: blocks that are all set become full, mixed ones partial with deduplicated bit tiles, empty
/// ones vanish. Ragged edge blocks count as full where every existing element is set.
TESSERA_EXPORT HostBlockMask block_mask_from_elements(const Tensor& elements, std::int64_t block_q,
                                                      std::int64_t block_kv);
/// Writes the u8 tensor [batch|1, heads|1, q_length, kv_length] that the mask stands for.
TESSERA_EXPORT void block_mask_to_elements(const BlockMask& mask, const Tensor& elements);
/// The lists of one (batch, head), full and partial together.
TESSERA_EXPORT Pattern pattern_of(const BlockMask& mask, std::int64_t kv_blocks,
                                  std::int64_t batch = 0, std::int64_t head = 0);

// ---- Generators --------------------------------------------------------------------------------

/// Seeded patterns, the same on every machine (version 1 of the generator: counts and positions are
/// fixed by the arguments alone). Sizes count blocks.
namespace patterns {
/// Every row stores round(density * cols) columns, at least one where density > 0, drawn without
/// repeats.
TESSERA_EXPORT Pattern random(std::int64_t rows, std::int64_t cols, double density,
                              std::uint64_t seed);
/// |i - j| <= half_width, along the diagonal that joins the corners.
TESSERA_EXPORT Pattern banded(std::int64_t rows, std::int64_t cols, std::int64_t half_width);
/// j <= i + (cols - rows): bottom-right.
TESSERA_EXPORT Pattern causal(std::int64_t rows, std::int64_t cols);
/// A window of |i - j| <= half_width, `global` first rows and columns, `random` more a row
/// (BigBird).
TESSERA_EXPORT Pattern bigbird(std::int64_t rows, std::int64_t cols, std::int64_t half_width,
                               std::int64_t global, std::int64_t random, std::uint64_t seed);
/// `groups` blocks on the diagonal (experts). With zipf > 0 their shares of the rows follow a power
/// law.
TESSERA_EXPORT Pattern block_diagonal(std::int64_t rows, std::int64_t cols, std::int64_t groups,
                                      double zipf = 0.0, std::uint64_t seed = 0);
/// Flat block butterfly (Pixelfly): the diagonal and the blocks at distance 2^k, k < levels, in
/// index XOR.
TESSERA_EXPORT Pattern butterfly(std::int64_t rows, std::int64_t cols, std::int64_t levels);
/// Row lengths follow Zipf's law with the exponent, in seeded order, at `density` overall.
TESSERA_EXPORT Pattern power_law(std::int64_t rows, std::int64_t cols, double density,
                                 double exponent, std::uint64_t seed);
/// A directed graph whose edges leave and reach nodes by Zipf's law, in one seeded order of the
/// nodes. Blocks that are drawn twice are one, so `density` is the most that is stored.
TESSERA_EXPORT Pattern power_law_graph(std::int64_t rows, std::int64_t cols, double density,
                                       double exponent, std::uint64_t seed);
/// Of each m columns in a row, n drawn at random; of the rest at a row's end as many, if there are.
TESSERA_EXPORT Pattern n_of_m(std::int64_t rows, std::int64_t cols, std::int64_t n, std::int64_t m,
                              std::uint64_t seed);
/// Chosen columns and diagonals (MInference): `verticals` columns, the first one and others at
/// random, and as many `slashes`, the diagonal that ends in the corner bottom-right and others.
/// Causal: of the columns and diagonals up to that one.
TESSERA_EXPORT Pattern vertical_slash(std::int64_t rows, std::int64_t cols, std::int64_t verticals,
                                      std::int64_t slashes, bool causal, std::uint64_t seed);
/// The k best of each row by scores such as long prompts have: near the diagonal that ends in the
/// corner bottom-right, or a column that all rows look at, the first one most, or neither, at
/// random. Causal: of the columns up to that diagonal.
TESSERA_EXPORT Pattern heavy_hitters(std::int64_t rows, std::int64_t cols, std::int64_t k,
                                     bool causal, std::uint64_t seed);
/// Sliding tile attention of videos: a volume of frames x height x width tiles, of `blocks` blocks
/// each, one after the other. Each sees as many tiles around it as the neighbourhood has, which is
/// pushed inwards at the edges.
TESSERA_EXPORT Pattern sliding_tile(const std::array<std::int64_t, 3>& volume,
                                    const std::array<std::int64_t, 3>& neighbourhood,
                                    std::int64_t blocks = 1);
/// Finite elements on a grid of nodes (one of them: a line or a plane), each of so many unknowns,
/// coupled with all neighbours, the diagonal ones too: 9 or 27 nodes. Nodes are in the order of
/// Cuthill and McKee; what is stored is each block of block x block unknowns with a coupling.
TESSERA_EXPORT Pattern mesh(const std::array<std::int64_t, 3>& nodes, std::int64_t unknowns = 1,
                            std::int64_t block = 1);
/// The k largest scores of each row of a float tensor [rows, cols] (ties: the lower column).
TESSERA_EXPORT Pattern top_k(const Tensor& scores, std::int64_t k);
}  // namespace patterns

// ---- Files and figures -------------------------------------------------------------------------

/// Matrix Market coordinate files: real, integer or pattern; general, symmetric or skew-symmetric.
/// Throws `Error` (io) naming the file and line; sizes are checked before anything is allocated.
TESSERA_EXPORT Coo read_matrix_market(const std::string& path);
/// DLMC's .smtx: "rows, cols, nonzeros", offsets, columns; values are ones.
TESSERA_EXPORT Coo read_smtx(const std::string& path);

struct PatternStatistics {
  std::int64_t rows = 0, cols = 0, stored = 0;
  double density = 0;
  std::int64_t shortest_row = 0, longest_row = 0, empty_rows = 0, empty_cols = 0;
  double mean_row = 0;
  double imbalance = 0;          ///< longest row over the mean: 1 is even
  double neighbour_overlap = 0;  ///< mean share of a row's blocks that the next row has too
  std::vector<std::int64_t> histogram_edges;   ///< bins of row length: [edge i, edge i + 1)
  std::vector<std::int64_t> histogram_counts;  ///< rows in each bin
};
TESSERA_EXPORT PatternStatistics statistics(const Pattern& pattern, int bins = 16);

}  // namespace tessera
