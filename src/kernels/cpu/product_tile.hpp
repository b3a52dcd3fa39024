#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <tessera/matmul.hpp>

#include "src/kernels/cpu/layout.hpp"
#include "src/kernels/cpu/simd.hpp"

// The inner product of all CPU products: a tile of rows is the sum, over the terms of a walk, of a
// piece of the left operand times rows of the packed right operand. A dense product has one term, a
// sparse one a term per stored block. Left pieces are read in place if they are f32 and contiguous
// along the depth, else converted into scratch, a chunk at a time.
namespace tessera::cpu {

using planning::pad_lanes;
using planning::ProductScratch;

/// The factors of a matrix in FP8: element (r, c) of the matrix is multiplied by the factor of its
/// box. Without data there are none.
struct ScaleView {
  const float* data = nullptr;
  std::int64_t row = 0, col = 0;  // strides from box to box
  std::int64_t box_rows = INT64_MAX, box_cols = INT64_MAX;
  std::int64_t first_row = 0, first_col = 0;  // of the matrix among the boxes

  ScaleView turned() const { return {data, col, row, box_cols, box_rows, first_col, first_row}; }
  /// Multiplies n elements of row r from column c on.
  void apply(std::int64_t r, std::int64_t c, std::int64_t n, float* elements) const;
};

/// A matrix of any dtype and strides (in elements). Rows may come in blocks of `block_rows` that
/// are `block_stride` apart (the values of a BSR matrix, its blocks stacked).
struct MatrixView {
  const char* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t row = 0, col = 0;
  std::int64_t block_rows = INT64_MAX, block_stride = 0;
  ScaleView scale{};

  /// The transpose of a matrix without blocks.
  MatrixView turned() const {
    MatrixView view = *this;
    view.row = col, view.col = row;
    view.scale = scale.turned();
    return view;
  }
  /// The part of a matrix without blocks that starts at (r, c).
  MatrixView from(std::int64_t r, std::int64_t c) const {
    MatrixView view = *this;
    view.data += (r * row + c * col) * size_of(dtype);
    view.scale.first_row += r, view.scale.first_col += c;
    return view;
  }
  std::int64_t row_offset(std::int64_t r) const {
    return r / block_rows * block_stride + r % block_rows * row;
  }
  const void* at(std::int64_t element) const { return data + element * size_of(dtype); }
};

/// A right operand in f32, divided into strips of columns; a strip's rows are contiguous.
struct PackedRight {
  float* data;
  std::int64_t rows;
  Strips strips;
  int lanes;

  float* strip(int i) const { return data + rows * strips.first(i) * lanes; }
  std::int64_t width(int i) const { return static_cast<std::int64_t>(strips.width(i)) * lanes; }
};

/// One strip of a packed right operand: `vectors` vectors wide, its rows contiguous.
struct Strip {
  const float* data;
  int vectors;
};

/// Packs rows [begin, end) of a strip from columns [first_col, first_col + strip width) of
/// `source`, which has `cols` columns; columns beyond are zero.
void pack_strip(const Simd& isa, const MatrixView& source, std::int64_t first_col,
                std::int64_t cols, const PackedRight& right, int strip, std::int64_t begin,
                std::int64_t end);

/// One term of a walk: `depth` columns of the left operand from element `left` on, times rows of
/// the packed right operand from `right_row` on. Factors of the left operand begin at (left_row,
/// left_col).
struct Term {
  std::int64_t left, right_row, depth;
  std::int64_t left_row = 0, left_col = 0;
};

/// c[rows x (strips side by side)] = sum of terms.
void multiply_tile(const Simd& isa, const MatrixView& left, int rows, std::span<const Term> terms,
                   std::span<const Strip> strips, float* c, std::int64_t c_row,
                   const ProductScratch& scratch, std::int64_t chunk_depth,
                   std::vector<Segment>& segments);

/// The output of a tile: out[r, j] = activation(alpha * tile + beta * c + bias).
struct TileOutput {
  char* out = nullptr;
  DType out_dtype = DType::f32;
  std::int64_t out_row = 0, out_col = 0;
  const char* c = nullptr;  // null if beta is 0
  DType c_dtype = DType::f32;
  std::int64_t c_row = 0, c_col = 0;
  const char* bias = nullptr;
  DType bias_dtype = DType::none;
  std::int64_t bias_row = 0, bias_col = 0;  // one of them 0
  float alpha = 1, beta = 0;
  Activation activation = Activation::none;

  /// The same output with rows and columns exchanged.
  TileOutput turned() const;
  /// The part that starts at (row, col).
  TileOutput from(std::int64_t row, std::int64_t col) const;
};

void store_tile(const Simd& isa, const float* c, std::int64_t c_row, int rows, int cols,
                const TileOutput& to, const ProductScratch& scratch);

}  // namespace tessera::cpu
