#include "src/kernels/cpu/product_tile.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::cpu {

void ScaleView::apply(std::int64_t r, std::int64_t c, std::int64_t n, float* elements) const {
  if (!data) return;
  const float* const line = data + (first_row + r) / box_rows * row;
  for (std::int64_t i = 0; i < n;) {
    const std::int64_t at = first_col + c + i;
    const std::int64_t end = std::min(n, i + box_cols - at % box_cols);
    const float factor = line[at / box_cols * col];
    for (; i < end; ++i) elements[i] *= factor;
  }
}

namespace {

// Packs a strip whose columns are contiguous in the source: each is read along its contiguous
// direction and scattered.
void pack_turned(const Simd& isa, const MatrixView& source, std::int64_t first_col,
                 std::int64_t present, float* to, std::int64_t width, std::int64_t begin,
                 std::int64_t end) {
  constexpr std::int64_t kRun = 64;
  float run[kRun];
  for (std::int64_t k = begin; k < end;) {
    const std::int64_t in_block = source.block_rows - k % source.block_rows;
    const std::int64_t n = std::min({kRun, end - k, in_block});
    for (std::int64_t j = 0; j < present; ++j) {
      isa.load(source.at(source.row_offset(k) + (first_col + j) * source.col), source.dtype,
               source.row, n, run);
      source.scale.turned().apply(first_col + j, k, n, run);
      for (std::int64_t i = 0; i < n; ++i) to[(k + i) * width + j] = run[i];
    }
    k += n;
  }
}

}  // namespace

void pack_strip(const Simd& isa, const MatrixView& source, std::int64_t first_col,
                std::int64_t cols, const PackedRight& right, int strip, std::int64_t begin,
                std::int64_t end) {
  const std::int64_t width = right.width(strip);
  const std::int64_t present = std::clamp<std::int64_t>(cols - first_col, 0, width);
  float* to = right.strip(strip);
  if (source.col != 1 && source.row == 1) {
    pack_turned(isa, source, first_col, present, to, width, begin, end);
  } else {
    for (std::int64_t k = begin; k < end; ++k) {
      isa.load(source.at(source.row_offset(k) + first_col * source.col), source.dtype, source.col,
               present, to + k * width);
      source.scale.apply(k, first_col, present, to + k * width);
    }
  }
  if (present < width)
    for (std::int64_t k = begin; k < end; ++k)
      std::fill(to + k * width + present, to + (k + 1) * width, 0.0f);
}

namespace {

// Converts the pieces of one chunk, side by side, into rows of `depth` floats.
void load_left(const Simd& isa, const MatrixView& left, int rows, std::span<const Term> chunk,
               std::int64_t depth, float* to) {
  if (left.col == 1 || left.row != 1) {
    for (int r = 0; r < rows; ++r) {
      float* row = to + r * depth;
      for (const Term& term : chunk) {
        isa.load(left.at(term.left + r * left.row), left.dtype, left.col, term.depth, row);
        left.scale.apply(term.left_row + r, term.left_col, term.depth, row);
        row += term.depth;
      }
    }
    return;
  }
  float column[planning::kMaxTileRows];
  const ScaleView scale = left.scale.turned();
  std::int64_t at = 0;
  for (const Term& term : chunk)
    for (std::int64_t k = 0; k < term.depth; ++k, ++at) {
      isa.load(left.at(term.left + k * left.col), left.dtype, 1, rows, column);
      scale.apply(term.left_col + k, term.left_row, rows, column);
      for (int r = 0; r < rows; ++r) to[r * depth + at] = column[r];
    }
}

}  // namespace

void multiply_tile(const Simd& isa, const MatrixView& left, int rows, std::span<const Term> terms,
                   std::span<const Strip> strips, float* c, std::int64_t c_row,
                   const ProductScratch& scratch, std::int64_t chunk_depth,
                   std::vector<Segment>& segments) {
  const bool in_place = left.dtype == DType::f32 && left.col == 1;
  Term chunk[64];
  bool accumulate = false;
  std::size_t next = 0;
  std::int64_t taken = 0;  // done of terms[next]
  do {
    int count = 0;
    std::int64_t depth = 0;
    while (next < terms.size() && count < 64 && depth < chunk_depth) {
      const Term& term = terms[next];
      const std::int64_t n = std::min(term.depth - taken, chunk_depth - depth);
      chunk[count++] = {term.left + taken * left.col, term.right_row + taken, n, term.left_row,
                        term.left_col + taken};
      depth += n;
      taken += n;
      if (taken == term.depth) {
        ++next;
        taken = 0;
      }
    }
    const std::span<const Term> pieces(chunk, static_cast<std::size_t>(count));
    if (!in_place) load_left(isa, left, rows, pieces, depth, scratch.left);
    segments.resize(static_cast<std::size_t>(count));
    const float* base = in_place ? reinterpret_cast<const float*>(left.data) : scratch.left;
    float* to = c;
    for (const Strip& strip : strips) {
      const std::int64_t width = static_cast<std::int64_t>(strip.vectors) * isa.lanes;
      std::int64_t at = 0;
      for (int i = 0; i < count; ++i) {
        segments[static_cast<std::size_t>(i)] = {base + (in_place ? chunk[i].left : at),
                                                 strip.data + chunk[i].right_row * width,
                                                 chunk[i].depth};
        at += chunk[i].depth;
      }
      const ProductStrides strides{in_place ? left.row : depth, 1, width};
      isa.multiply(segments.data(), count, strides, rows, strip.vectors, to, c_row, accumulate);
      to += width;
    }
    accumulate = true;
  } while (next < terms.size());
}

TileOutput TileOutput::turned() const {
  TileOutput t = *this;
  std::swap(t.out_row, t.out_col);
  std::swap(t.c_row, t.c_col);
  std::swap(t.bias_row, t.bias_col);
  return t;
}

TileOutput TileOutput::from(std::int64_t row, std::int64_t col) const {
  TileOutput t = *this;
  t.out += (row * out_row + col * out_col) * size_of(out_dtype);
  if (c) t.c += (row * c_row + col * c_col) * size_of(c_dtype);
  if (bias) t.bias += (row * bias_row + col * bias_col) * size_of(bias_dtype);
  return t;
}

namespace {

void activate(const Simd& isa, Activation activation, float* x, int n) {
  switch (activation) {
    case Activation::none:
      return;
    case Activation::relu:
      // Written so that NaN stays NaN.
      for (int i = 0; i < n; ++i) x[i] = x[i] < 0.0f ? 0.0f : x[i];
      return;
    case Activation::gelu:
      for (int i = 0; i < n; ++i) x[i] = 0.5f * x[i] * std::erfc(x[i] * -0.70710678118654752f);
      return;
    case Activation::gelu_tanh:
      isa.gelu_tanh(x, n);
      return;
    case Activation::silu:
      isa.silu(x, n);
      return;
  }
}

}  // namespace

void store_tile(const Simd& isa, const float* c, std::int64_t c_row, int rows, int cols,
                const TileOutput& to, const ProductScratch& scratch) {
  if (to.out_col != 1 && to.out_row == 1 && cols > 1) {
    float* turned = scratch.turned;
    constexpr int kPatch = 16;
    for (int r0 = 0; r0 < rows; r0 += kPatch)
      for (int j0 = 0; j0 < cols; j0 += kPatch)
        for (int j = j0; j < std::min(cols, j0 + kPatch); ++j)
          for (int r = r0; r < std::min(rows, r0 + kPatch); ++r)
            turned[j * rows + r] = c[r * c_row + j];
    ProductScratch rest = scratch;
    rest.turned = scratch.left;  // no longer needed
    store_tile(isa, turned, rows, cols, rows, to.turned(), rest);
    return;
  }
  const bool plain = to.alpha == 1.0f && !to.c && !to.bias && to.activation == Activation::none;
  float* line = scratch.turned;
  float* other = scratch.turned + cols;
  for (int r = 0; r < rows; ++r) {
    const TileOutput at = to.from(r, 0);
    const float* from = c + r * c_row;
    if (!plain) {
      for (int j = 0; j < cols; ++j) line[j] = to.alpha * from[j];
      if (at.c) {
        isa.load(at.c, to.c_dtype, to.c_col, cols, other);
        for (int j = 0; j < cols; ++j) line[j] += to.beta * other[j];
      }
      if (at.bias) {
        isa.load(at.bias, to.bias_dtype, to.bias_col, cols, other);
        for (int j = 0; j < cols; ++j) line[j] += other[j];
      }
      activate(isa, to.activation, line, cols);
      from = line;
    }
    isa.store(from, cols, at.out, to.out_dtype, to.out_col);
  }
}

}  // namespace tessera::cpu
