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

/// Sparsity patterns in host memory: generate, convert, read and inspect them.
namespace tessera {

/// The pattern of a block-sparse matrix: the stored blocks of each block row, as sorted lists in
/// host memory.
struct TESSERA_EXPORT Pattern {
  std::int64_t rows = 0, cols = 0;    ///< in blocks
  std::vector<std::int64_t> offsets;  ///< [rows + 1]: where each row begins and ends in indices
  std::vector<std::int64_t> indices;  ///< [stored]: block columns, sorted and unique within a row

  /// Number of stored blocks.
  std::int64_t stored() const { return static_cast<std::int64_t>(indices.size()); }
  /// Stored blocks as a share of all blocks, 0 to 1; 0 for an empty matrix.
  double density() const;
  /// Whether block (row, col) is stored.
  bool contains(std::int64_t row, std::int64_t col) const;
  friend bool operator==(const Pattern&, const Pattern&) = default;
};

/// Checks the invariants of `Pattern`: offsets from 0 to the number of indices, never decreasing,
/// and columns in range, sorted and unique within a row. Throws `Error` for the first violation.
TESSERA_EXPORT void validate(const Pattern& pattern);

/// The blocks of a pattern listed by column: entry t of column j is the block in row
/// row_indices[t], at position positions[t] of the pattern's indices.
struct TransposedLists {
  std::vector<std::int64_t> offsets;      ///< [cols + 1]
  std::vector<std::int64_t> row_indices;  ///< [stored]: ascending within a column
  std::vector<std::int64_t> positions;    ///< [stored]
};
/// Lists the blocks of a pattern by column.
TESSERA_EXPORT TransposedLists transposed_lists(const Pattern& pattern);
/// The transposed pattern.
TESSERA_EXPORT Pattern transpose(const Pattern& pattern);

/// Merges blocks: block (i, j) of the result is stored if any of the row_factor x col_factor blocks
/// that it covers is. The factors must divide the numbers of block rows and columns.
TESSERA_EXPORT Pattern coarsen(const Pattern& pattern, std::int64_t row_factor,
                               std::int64_t col_factor);
/// Splits blocks: every stored block becomes row_factor x col_factor stored blocks.
TESSERA_EXPORT Pattern refine(const Pattern& pattern, std::int64_t row_factor,
                              std::int64_t col_factor);

// ---- BSR matrices ------------------------------------------------------------------------------

/// A BSR matrix that owns its tensors in host memory. Pass `view()`, or the object itself, to a
/// problem.
struct TESSERA_EXPORT HostBsr {
  HostTensor values, row_offsets, col_indices;
  std::int64_t rows = 0, cols = 0;

  BsrMatrix view() const { return {values, row_offsets, col_indices, rows, cols}; }
  operator BsrMatrix() const { return view(); }  // NOLINT: meant to convert
};

/// Makes a BSR matrix of zeros with the given pattern, block size and dtype. `index` is the dtype
/// of the lists, i32 or i64.
TESSERA_EXPORT HostBsr make_bsr(const Pattern& pattern, std::int64_t block_rows,
                                std::int64_t block_cols, DType dtype, DType index = DType::i32);
/// The pattern of an unbatched BSR matrix whose lists are in host memory.
TESSERA_EXPORT Pattern pattern_of(const BsrMatrix& matrix);

/// Converts `dense` [rows, cols] to BSR and stores the blocks with an element |x| > threshold, or a
/// NaN. The block size must divide the shape.
TESSERA_EXPORT HostBsr bsr_from_dense(const Tensor& dense, std::int64_t block_rows,
                                      std::int64_t block_cols, double threshold = 0.0,
                                      DType index = DType::i32);
/// Converts `dense` to BSR and stores the fraction `density` (0 to 1) of blocks with the largest
/// sums of squares; ties go to the first in row order. Throws `Error` if an element is NaN.
TESSERA_EXPORT HostBsr bsr_keep_densest(const Tensor& dense, std::int64_t block_rows,
                                        std::int64_t block_cols, double density,
                                        DType index = DType::i32);
/// Converts `dense` to BSR and stores the blocks of `pattern`.
TESSERA_EXPORT HostBsr bsr_from_dense(const Tensor& dense, const Pattern& pattern,
                                      std::int64_t block_rows, std::int64_t block_cols,
                                      DType index = DType::i32);
/// Converts an unbatched BSR matrix in host memory to dense: writes every element of `dense` [rows,
/// cols], with zeros where no block is stored.
TESSERA_EXPORT void bsr_to_dense(const BsrMatrix& matrix, const Tensor& dense);

/// Elements as (row, col, value) triples in any order. Values at equal coordinates are summed, as
/// in SciPy.
struct Coo {
  std::int64_t rows = 0, cols = 0;
  std::vector<std::int64_t> row, col;
  std::vector<double> value;
};
/// Converts COO elements to BSR: stores the blocks that hold at least one element.
TESSERA_EXPORT HostBsr bsr_from_coo(const Coo& coo, std::int64_t block_rows,
                                    std::int64_t block_cols, DType dtype = DType::f32,
                                    DType index = DType::i32);
/// Converts a CSR matrix to BSR: offsets [rows + 1], columns and values, as in SciPy. Columns may
/// be unsorted; the values of duplicates are summed.
TESSERA_EXPORT HostBsr bsr_from_csr(std::int64_t rows, std::int64_t cols,
                                    const std::vector<std::int64_t>& offsets,
                                    const std::vector<std::int64_t>& columns,
                                    const std::vector<double>& values, std::int64_t block_rows,
                                    std::int64_t block_cols, DType dtype = DType::f32,
                                    DType index = DType::i32);
/// The pattern of the blocks that hold at least one element.
TESSERA_EXPORT Pattern pattern_of(const Coo& coo, std::int64_t block_rows, std::int64_t block_cols);
/// The pattern of a u8 tensor [block rows, block cols] in host memory: nonzero entries are stored.
TESSERA_EXPORT Pattern pattern_from_bool(const Tensor& blocks);

// ---- Block masks -------------------------------------------------------------------------------

/// A block mask that owns its tensors in host memory, in the form of counts and indices.
struct TESSERA_EXPORT HostBlockMask {
  std::int64_t block_q = 0, block_kv = 0;
  HostTensor full_counts, full_indices;
  HostTensor partial_counts, partial_indices;  ///< absent if every block is full
  HostTensor bit_tile, bits;                   ///< absent if every block is full

  /// The mask as a non-owning view, for a problem.
  BlockMask view() const;
};

/// Makes a mask in which every stored block is full. `patterns` has one pattern for all, one per
/// head, or one per batch and head: batch * heads of them, with the heads of a batch adjacent.
TESSERA_EXPORT HostBlockMask make_block_mask(const std::vector<Pattern>& patterns,
                                             std::int64_t batch, std::int64_t heads,
                                             std::int64_t block_q, std::int64_t block_kv);
/// Makes a mask of full blocks from one pattern for all batches and heads.
inline HostBlockMask make_block_mask(const Pattern& pattern, std::int64_t block_q,
                                     std::int64_t block_kv) {
  return make_block_mask(std::vector<Pattern>{pattern}, 1, 1, block_q, block_kv);
}
/// Makes a mask from a u8 tensor [q_length, kv_length] or [batch|1, heads|1, q_length, kv_length]
/// of element flags. Blocks with all flags set become full, mixed blocks partial, and blocks
/// without flags are left out. A ragged block at the edge is full if all its existing elements are
/// set. Equal element masks are stored once.
TESSERA_EXPORT HostBlockMask block_mask_from_elements(const Tensor& elements, std::int64_t block_q,
                                                      std::int64_t block_kv);
/// Expands a mask in host memory to element flags: writes 0 or 1 to every element of the u8 tensor
/// [q_length, kv_length] or [batch|1, heads|1, q_length, kv_length].
TESSERA_EXPORT void block_mask_to_elements(const BlockMask& mask, const Tensor& elements);
/// The pattern of one batch and head of a mask in host memory, with `kv_blocks` block columns. It
/// contains full and partial blocks.
TESSERA_EXPORT Pattern pattern_of(const BlockMask& mask, std::int64_t kv_blocks,
                                  std::int64_t batch = 0, std::int64_t head = 0);

// ---- Generators --------------------------------------------------------------------------------

/// Generators of patterns. Sizes count blocks. A pattern depends on the arguments and the seed
/// alone and is the same on every machine. The generators are frozen as version 1: any change of
/// what they draw is a new version.
namespace patterns {
/// Stores round(density * cols) random columns in every row, at least one if density > 0.
TESSERA_EXPORT Pattern random(std::int64_t rows, std::int64_t cols, double density,
                              std::uint64_t seed);
/// Stores the blocks within `half_width` of the diagonal that joins the corners.
TESSERA_EXPORT Pattern banded(std::int64_t rows, std::int64_t cols, std::int64_t half_width);
/// Stores j <= i + (cols - rows): causal, aligned at the bottom-right corner.
TESSERA_EXPORT Pattern causal(std::int64_t rows, std::int64_t cols);
/// BigBird: the blocks within `half_width` of the diagonal, the first `global` rows and columns,
/// and `random` more blocks per row.
TESSERA_EXPORT Pattern bigbird(std::int64_t rows, std::int64_t cols, std::int64_t half_width,
                               std::int64_t global, std::int64_t random, std::uint64_t seed);
/// Stores `groups` dense blocks along the diagonal, such as experts. They divide the rows evenly
/// if zipf is 0, else by Zipf's law with that exponent, in seeded order.
TESSERA_EXPORT Pattern block_diagonal(std::int64_t rows, std::int64_t cols, std::int64_t groups,
                                      double zipf = 0.0, std::uint64_t seed = 0);
/// Flat block butterfly (Pixelfly): stores the diagonal and the blocks j = i XOR 2^k for k <
/// levels.
TESSERA_EXPORT Pattern butterfly(std::int64_t rows, std::int64_t cols, std::int64_t levels);
/// Row lengths follow Zipf's law with the given exponent, in seeded order; columns are random. The
/// pattern has the given density.
TESSERA_EXPORT Pattern power_law(std::int64_t rows, std::int64_t cols, double density,
                                 double exponent, std::uint64_t seed);
/// The adjacency matrix of a directed graph in which the numbers of outgoing and incoming edges
/// follow Zipf's law, with the nodes in one seeded order. Edges drawn twice are stored once, so
/// `density` is an upper bound.
TESSERA_EXPORT Pattern power_law_graph(std::int64_t rows, std::int64_t cols, double density,
                                       double exponent, std::uint64_t seed);
/// N:M sparsity: stores n random columns of each m adjacent ones. A shorter remainder at the end of
/// a row stores min(n, its length) columns.
TESSERA_EXPORT Pattern n_of_m(std::int64_t rows, std::int64_t cols, std::int64_t n, std::int64_t m,
                              std::uint64_t seed);
/// Vertical-slash pattern (MInference): `verticals` columns and `slashes` diagonals. The first
/// column and the diagonal that ends in the bottom-right corner are always among them; the others
/// are random. If causal, nothing beyond that diagonal is stored.
TESSERA_EXPORT Pattern vertical_slash(std::int64_t rows, std::int64_t cols, std::int64_t verticals,
                                      std::int64_t slashes, bool causal, std::uint64_t seed);
/// Stores the `k` columns of each row with the largest synthetic scores. As in long prompts, scores
/// are high near the diagonal that ends in the bottom-right corner and in a few columns that all
/// rows attend to, the first column most of all; noise is added. If causal, only columns up to
/// that diagonal are considered.
TESSERA_EXPORT Pattern heavy_hitters(std::int64_t rows, std::int64_t cols, std::int64_t k,
                                     bool causal, std::uint64_t seed);
/// Sliding tile attention over a video of frames x height x width tiles, each of `blocks` adjacent
/// block rows and columns. A tile sees the tiles in a box of size `neighbourhood` around it; at the
/// edges of the volume the box is shifted inwards.
TESSERA_EXPORT Pattern sliding_tile(const std::array<std::int64_t, 3>& volume,
                                    const std::array<std::int64_t, 3>& neighbourhood,
                                    std::int64_t blocks = 1);
/// The stiffness matrix of finite elements on a grid of nodes (sizes of 1 make a plane or a line),
/// with `unknowns` per node. A node is coupled with itself and all neighbours, diagonal ones
/// included: up to 27 nodes. Nodes are in Cuthill-McKee order. A block of block x block unknowns is
/// stored if any two of them are coupled.
TESSERA_EXPORT Pattern mesh(const std::array<std::int64_t, 3>& nodes, std::int64_t unknowns = 1,
                            std::int64_t block = 1);
/// Stores the columns of the k largest scores of each row. `scores` is a float tensor [rows, cols]
/// in host memory. Ties go to the lower column; NaN counts as the largest.
TESSERA_EXPORT Pattern top_k(const Tensor& scores, std::int64_t k);
}  // namespace patterns

// ---- Files and statistics ----------------------------------------------------------------------

/// Reads a Matrix Market coordinate file with real, integer or pattern values, general, symmetric
/// or skew-symmetric. Throws `Error` (io) with the file and line if it is malformed. Sizes are
/// checked against the file's length before memory is allocated.
TESSERA_EXPORT Coo read_matrix_market(const std::string& path);
/// Reads a .smtx file (DLMC): "rows, cols, nonzeros", offsets and columns. All values are 1. Throws
/// `Error` like `read_matrix_market`.
TESSERA_EXPORT Coo read_smtx(const std::string& path);

/// Statistics of a pattern; rows, columns and lengths count blocks.
struct PatternStatistics {
  std::int64_t rows = 0, cols = 0, stored = 0;
  double density = 0;
  std::int64_t shortest_row = 0, longest_row = 0, empty_rows = 0, empty_cols = 0;
  double mean_row = 0;
  double imbalance = 0;          ///< longest row / mean row; 1 if all rows have one length
  double neighbour_overlap = 0;  ///< mean share of a row's blocks that the next row stores too
  std::vector<std::int64_t> histogram_edges;   ///< bin i holds lengths in [edge i, edge i + 1)
  std::vector<std::int64_t> histogram_counts;  ///< rows in each bin
};
/// Computes statistics of a pattern, with a histogram of row lengths in at most `bins` bins.
TESSERA_EXPORT PatternStatistics statistics(const Pattern& pattern, int bins = 16);

}  // namespace tessera
