#include <algorithm>
#include <numeric>

#include "tests/support/generate.hpp"

namespace tessera::generate {
namespace {

DType float_type(Random& random) { return random.pick({DType::f32, DType::f16, DType::bf16}); }
DType index_type(Random& random) { return random.pick({DType::i32, DType::i64}); }

std::int64_t block_size(Random& random, std::int64_t largest) {
  const std::int64_t size = random.pick<std::int64_t>({1, 2, 3, 4, 5, 8, 8, 16, 16, 24, 32, 64});
  return std::min(size, std::max<std::int64_t>(largest, 1));
}

/// Sizes for the edge cases of tiles: zero, one, odd, and around powers of two.
std::int64_t dense_size(Random& random, std::int64_t largest) {
  if (random.chance(0.04)) return random.between(0, 1);
  if (random.chance(0.3))
    return std::min<std::int64_t>(largest, random.pick({7, 8, 9, 16, 31, 33}));
  return random.between(1, largest);
}

std::int64_t whole_blocks(Random& random, std::int64_t block, std::int64_t largest) {
  if (random.chance(0.04)) return 0;
  return block * random.between(1, std::max<std::int64_t>(1, largest / block));
}

/// A pattern with exactly `stored` blocks.
Pattern pattern_with(Random& random, std::int64_t rows, std::int64_t cols, std::int64_t stored) {
  std::vector<std::int64_t> cells(static_cast<std::size_t>(rows * cols));
  std::iota(cells.begin(), cells.end(), std::int64_t{0});
  random.shuffle(cells);
  cells.resize(static_cast<std::size_t>(stored));
  std::sort(cells.begin(), cells.end());
  Pattern pattern{rows, cols, std::vector<std::int64_t>(static_cast<std::size_t>(rows) + 1), {}};
  for (std::int64_t cell : cells) {
    pattern.indices.push_back(cell % cols);
    for (std::int64_t r = cell / cols; r < rows; ++r)
      ++pattern.offsets[static_cast<std::size_t>(r) + 1];
  }
  return pattern;
}

/// The inner indices (columns of a, rows of b) at which a sparse operand stores blocks.
std::vector<char> inner_in_use(const WildBsr& bsr, bool inner_is_rows) {
  const BsrMatrix& matrix = bsr.matrix;
  const std::int64_t size = inner_is_rows ? matrix.rows : matrix.cols;
  const std::int64_t block = inner_is_rows ? matrix.block_rows() : matrix.block_cols();
  std::vector<char> used(static_cast<std::size_t>(size), 0);
  for (const Pattern& pattern : bsr.patterns) {
    for (std::int64_t row = 0; row < pattern.rows; ++row) {
      for (auto p = pattern.offsets[static_cast<std::size_t>(row)];
           p < pattern.offsets[static_cast<std::size_t>(row) + 1]; ++p) {
        const std::int64_t at = inner_is_rows ? row : pattern.indices[static_cast<std::size_t>(p)];
        std::fill_n(used.begin() + at * block, block, 1);
      }
    }
  }
  return used;
}

/// Fills with normal values, except that inner indices at which the other operand stores nothing
/// stay NaN.
void fill_used(Memory& memory, Random& random, const Tensor& dense, int inner_dim,
               const std::vector<char>& used) {
  memory.fill_normal(dense);
  if (used.empty() || repeats(dense) || random.chance(0.2)) return;
  oracle::DenseArray array = oracle::read(dense);
  const std::int64_t cols = dense.size(dense.rank - 1);
  const std::int64_t rows = dense.size(dense.rank - 2);
  for (std::size_t at = 0; at < array.values.size(); ++at) {
    const auto n = static_cast<std::int64_t>(at);
    const std::int64_t inner = inner_dim == dense.rank - 1 ? n % cols : n / cols % rows;
    if (!used[static_cast<std::size_t>(inner)]) array.values[at] = std::nan("");
  }
  oracle::write(dense, array);
}

/// One operand under construction.
struct Draft {
  bool sparse = false, transposed = false;
  std::int64_t rows = 0, cols = 0;  // as the product sees it
  std::int64_t block_rows = 1, block_cols = 1;
  std::int64_t batch = 1;
  std::optional<DType> dtype{};  // absent: that of the problem
  WildBsr bsr{};
};

/// Makes both operands; each is NaN where the other stores nothing.
void make_operands(Random& random, Memory& memory, DType dtype, Draft& a, Draft& b, Operand& left,
                   Operand& right, Layout layout) {
  const auto make = [&](Draft& draft, Operand& operand) {
    operand.transposed = draft.transposed;
    if (!draft.sparse) return;
    const bool t = draft.transposed;
    draft.bsr =
        wild_bsr(random, memory, t ? draft.cols : draft.rows, t ? draft.rows : draft.cols,
                 t ? draft.block_cols : draft.block_rows, t ? draft.block_rows : draft.block_cols,
                 draft.dtype.value_or(dtype), draft.batch, false);
    operand.sparse = draft.bsr.matrix;
  };
  make(a, left);
  make(b, right);
  const auto fill = [&](Draft& draft, Operand& operand, const Draft& other, bool is_left) {
    if (draft.sparse) return;
    std::vector<std::int64_t> shape{draft.rows, draft.cols};
    if (draft.transposed) std::swap(shape[0], shape[1]);
    if (draft.batch != 1 || random.chance(0.1)) shape.insert(shape.begin(), draft.batch);
    operand.dense = memory.input(draft.dtype.value_or(dtype), shape, layout);
    std::vector<char> used;
    if (other.sparse) used = inner_in_use(other.bsr, is_left != other.transposed);
    const bool inner_last = is_left != draft.transposed;
    fill_used(memory, random, operand.dense, operand.dense.rank - (inner_last ? 1 : 2), used);
  };
  fill(a, left, b, true);
  fill(b, right, a, false);
}

DType fp8_type(Random& random) { return random.pick({DType::e4m3, DType::e4m3, DType::e5m2}); }

/// Factors of the size of `unit`, some of them 0.
Tensor factors(Random& random, Memory& memory, const std::vector<std::int64_t>& shape,
               double unit) {
  const Tensor scale = memory.input(DType::f32, shape, Layout::wild);
  memory.fill_normal(scale);
  oracle::DenseArray array = oracle::read(scale);
  for (double& x : array.values) x = random.chance(0.05) ? 0.0 : x * unit;
  if (!repeats(scale)) oracle::write(scale, array);
  return scale;
}

/// Factors of a random form for an operand in FP8, or none.
void draw_factors(Random& random, Memory& memory, Operand& operand, bool is_left, double unit) {
  if (random.chance(0.15)) return;
  std::vector<std::int64_t> shape{1};
  if (operand.is_sparse()) {
    const Tensor& values = operand.sparse.values;
    if (random.chance(0.8)) {
      shape = {operand.sparse.stored_blocks()};
      if (values.rank == 4 && random.chance(0.6)) shape.insert(shape.begin(), values.size(0));
    }
  } else if (random.chance(0.9)) {
    const Tensor& dense = operand.dense;
    const std::int64_t rows = dense.size(dense.rank - 2), cols = dense.size(dense.rank - 1);
    const auto blocks = [](std::int64_t length) { return (length + 127) / 128; };
    const bool in_rows = is_left != operand.transposed;  // lines of the product
    switch (random.between(0, 3)) {
      case 0:
        shape = {1, 1};
        break;
      case 1:
        shape = in_rows ? std::vector{rows, std::int64_t{1}} : std::vector{std::int64_t{1}, cols};
        break;
      case 2:
        shape = in_rows ? std::vector{rows, blocks(cols)} : std::vector{blocks(rows), cols};
        break;
      default:
        shape = {blocks(rows), blocks(cols)};
    }
    if (dense.rank == 3 && random.chance(0.6))
      shape.insert(shape.begin(), random.chance(0.3) ? 1 : dense.size(0));
  }
  operand.scale = factors(random, memory, shape, unit);
}

/// Factors of both operands; sometimes those of one are tiny and those of the other huge.
void draw_factors(Random& random, Memory& memory, MatmulProblem& problem) {
  const double unit = random.pick({1.0, 1.0, 0.01, 1e-25, 1e25});
  draw_factors(random, memory, problem.a, true, unit);
  draw_factors(random, memory, problem.b, false, problem.a.scale ? 1 / unit : 1.0);
}

void draw_epilogue(Case<MatmulProblem>& c, const std::vector<std::int64_t>& out_shape,
                   std::int64_t batch, bool grouped_rows) {
  Random& random = c.random;
  Epilogue& epilogue = c.problem.epilogue;
  if (random.chance(0.5)) epilogue.alpha = static_cast<float>(random.normal());
  if (random.chance(0.4)) {
    epilogue.beta = random.chance(0.3) ? 1.0f : static_cast<float>(random.normal());
    if (random.chance(0.5)) {
      epilogue.c = c.memory.input(float_type(random), out_shape, Layout::wild);
      c.memory.fill_normal(epilogue.c);
    }
  } else if (random.chance(0.2)) {
    // With beta = 0, c is not read.
    epilogue.c = c.memory.input(float_type(random), out_shape, Layout::wild);
  }
  if (random.chance(0.4)) {
    epilogue.bias_axis = random.pick({BiasAxis::row, BiasAxis::column});
    const bool by_row = epilogue.bias_axis == BiasAxis::row;
    std::vector<std::int64_t> shape{by_row ? out_shape[out_shape.size() - 2] : out_shape.back()};
    if (random.chance(0.5) && !(by_row && grouped_rows)) shape.insert(shape.begin(), batch);
    epilogue.bias = c.memory.input(float_type(random), shape, Layout::wild);
    c.memory.fill_normal(epilogue.bias);
  }
  epilogue.activation = random.pick({Activation::none, Activation::none, Activation::relu,
                                     Activation::gelu, Activation::gelu_tanh, Activation::silu});
}

/// The output, and its former contents where beta reads them.
void make_output(Case<MatmulProblem>& c, const std::vector<std::int64_t>& shape, DType dtype) {
  c.problem.out = c.memory.output(dtype, shape, Layout::wild);
  if (c.problem.epilogue.beta == 0 || c.problem.epilogue.c) return;
  c.memory.fill_normal(c.problem.out);
  c.former = oracle::read(c.problem.out);
}

void make_grouped(Case<MatmulProblem>& c, const ProductOptions& options, DType dtype) {
  Random& random = c.random;
  const bool by_rows = *options.grouped == GroupAxis::rows;
  const std::int64_t groups = random.between(1, 5);
  std::vector<std::int64_t> cuts{0};
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t size = random.chance(0.25) ? 0 : random.between(1, options.largest);
    cuts.push_back(cuts.back() + size);
  }
  const std::int64_t total = cuts.back();
  Draft a, b;
  b.sparse = by_rows && options.sparse_b.value_or(random.chance(0.4));
  a.transposed = random.chance(0.3);
  b.transposed = random.chance(0.3);
  if (b.sparse) {
    b.block_rows = block_size(random, options.largest);
    b.block_cols = block_size(random, options.largest);
  }
  const std::int64_t inner = b.sparse ? whole_blocks(random, b.block_rows, options.largest)
                                      : dense_size(random, options.largest);
  a.rows = by_rows ? total : dense_size(random, options.largest);
  a.cols = by_rows ? inner : total;
  b.rows = a.cols;
  b.cols = b.sparse ? whole_blocks(random, b.block_cols, options.largest)
                    : dense_size(random, options.largest);
  b.batch = by_rows ? groups : 1;
  MatmulProblem& problem = c.problem;
  if (options.fp8) a.dtype = fp8_type(random), b.dtype = fp8_type(random);
  make_operands(random, c.memory, dtype, a, b, problem.a, problem.b, Layout::wild);
  if (!by_rows) {
    // If groups divide the inner dimension, both operands are single dense matrices.
    for (Operand* side : {&problem.a, &problem.b}) {
      if (side->dense.rank == 2) continue;
      Tensor& t = side->dense;
      t.shape = {t.shape[1], t.shape[2]};
      t.strides = {t.strides[1], t.strides[2]};
      t.rank = 2;
    }
  } else if (problem.a.dense.rank == 3) {
    Tensor& t = problem.a.dense;
    t.shape = {t.shape[1], t.shape[2]};
    t.strides = {t.strides[1], t.strides[2]};
    t.rank = 2;
  }
  if (options.fp8) draw_factors(random, c.memory, problem);
  problem.group_axis = *options.grouped;
  problem.group_offsets = c.memory.list(index_type(random), {groups + 1}, cuts);
  std::vector<std::int64_t> shape{a.rows, b.cols};
  if (!by_rows) shape.insert(shape.begin(), groups);
  if (options.epilogue) draw_epilogue(c, shape, groups, by_rows);
  make_output(c, shape, random.chance(0.7) ? dtype : float_type(random));
}

}  // namespace

Pattern wild_pattern(Random& random, std::int64_t rows, std::int64_t cols) {
  Pattern pattern{rows, cols, {0}, {}};
  const int kind = static_cast<int>(random.between(0, 11));
  const std::int64_t full_row = rows > 0 ? random.between(0, rows - 1) : 0;
  const double density = random.pick({0.15, 0.4, 0.7});
  const double share_of_empty_rows = random.pick({0.0, 0.3});
  std::vector<char> empty_col(static_cast<std::size_t>(cols), 0);
  for (char& empty : empty_col) empty = random.chance(0.2);
  for (std::int64_t row = 0; row < rows; ++row) {
    const bool empty_row = random.chance(share_of_empty_rows);
    const double power_law = 1.0 / static_cast<double>(1 + (row + full_row) % rows);
    for (std::int64_t col = 0; col < cols; ++col) {
      bool stored = !empty_row && !empty_col[static_cast<std::size_t>(col)];
      if (kind == 0) stored = true;                      // all
      if (kind == 1) stored = false;                     // none
      if (kind == 2) stored = row == full_row;           // one full row
      if (kind == 3) stored = random.chance(power_law);  // power law
      if (kind > 3) stored = stored && random.chance(density);
      if (stored) pattern.indices.push_back(col);
    }
    pattern.offsets.push_back(static_cast<std::int64_t>(pattern.indices.size()));
  }
  return pattern;
}

WildBsr wild_bsr(Random& random, Memory& memory, std::int64_t rows, std::int64_t cols,
                 std::int64_t block_rows, std::int64_t block_cols, DType dtype, std::int64_t batch,
                 bool output) {
  const std::int64_t grid_rows = rows / block_rows, grid_cols = cols / block_cols;
  const DType index = index_type(random);
  WildBsr bsr;
  const Pattern first = wild_pattern(random, grid_rows, grid_cols);
  const int form = batch == 1 ? 0 : static_cast<int>(random.between(1, 4));
  const bool own_values = form == 1 || form == 2 || form == 4;
  bsr.patterns.assign(static_cast<std::size_t>(batch), first);
  std::vector<std::int64_t> offsets = first.offsets, columns = first.indices;
  std::vector<std::int64_t> offsets_shape{grid_rows + 1}, columns_shape;
  std::int64_t stored = first.stored();
  if (form == 2 || form == 3) offsets.clear(), columns.clear();
  if (form == 2) {
    // A pattern per matrix, all with the same number of blocks.
    for (Pattern& pattern : bsr.patterns) {
      pattern = pattern_with(random, grid_rows, grid_cols, stored);
      offsets.insert(offsets.end(), pattern.offsets.begin(), pattern.offsets.end());
      columns.insert(columns.end(), pattern.indices.begin(), pattern.indices.end());
    }
    offsets_shape = {batch, grid_rows + 1};
    columns_shape = {batch, stored};
  } else if (form == 3) {
    // A pool of blocks; each matrix has its own part of it.
    for (Pattern& pattern : bsr.patterns) {
      pattern = wild_pattern(random, grid_rows, grid_cols);
      const auto base = static_cast<std::int64_t>(columns.size());
      for (std::int64_t offset : pattern.offsets) offsets.push_back(base + offset);
      columns.insert(columns.end(), pattern.indices.begin(), pattern.indices.end());
    }
    stored = static_cast<std::int64_t>(columns.size());
    offsets_shape = {batch, grid_rows + 1};
    columns_shape = {stored};
  } else if (form == 4) {
    // The same lists, repeated for each matrix.
    for (std::int64_t b = 1; b < batch; ++b) {
      offsets.insert(offsets.end(), first.offsets.begin(), first.offsets.end());
      columns.insert(columns.end(), first.indices.begin(), first.indices.end());
    }
    offsets_shape = {batch, grid_rows + 1};
    columns_shape = {batch, stored};
  } else {
    columns_shape = {stored};
  }
  std::vector<std::int64_t> shape{stored, block_rows, block_cols};
  if (own_values) shape.insert(shape.begin(), batch);
  BsrMatrix& matrix = bsr.matrix;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.row_offsets = memory.list(index, offsets_shape, offsets);
  matrix.col_indices = memory.list(index, columns_shape, columns);
  matrix.values =
      output ? memory.output(dtype, shape, Layout::wild) : memory.input(dtype, shape, Layout::wild);
  if (!output) memory.fill_normal(matrix.values);
  return bsr;
}

std::unique_ptr<Case<MatmulProblem>> matmul_case(std::uint64_t seed,
                                                 const ProductOptions& options) {
  auto made = std::make_unique<Case<MatmulProblem>>(seed);
  Case<MatmulProblem>& c = *made;
  Random& random = c.random;
  const DType dtype = options.dtype.value_or(float_type(random));
  c.text = "matmul_case(" + std::to_string(seed) + ")";
  if (options.grouped) {
    make_grouped(c, options, dtype);
    return made;
  }
  Draft a, b;
  a.sparse = options.sparse_a.value_or(random.chance(0.4));
  b.sparse = options.sparse_b.value_or(random.chance(0.4));
  for (Draft* draft : {&a, &b}) {
    draft->transposed = random.chance(0.4);
    if (!draft->sparse) continue;
    draft->block_rows = block_size(random, options.largest);
    draft->block_cols = block_size(random, options.largest);
  }
  // The inner dimension is a multiple of the blocks of both sides.
  const std::int64_t inner_block = std::lcm(a.block_cols, b.block_rows);
  if (a.sparse && b.sparse && (inner_block > options.largest || random.chance(0.5))) {
    b.block_rows = a.block_cols;
  }
  a.rows = a.sparse ? whole_blocks(random, a.block_rows, options.largest)
                    : dense_size(random, options.largest);
  b.cols = b.sparse ? whole_blocks(random, b.block_cols, options.largest)
                    : dense_size(random, options.largest);
  a.cols = b.rows =
      a.sparse || b.sparse
          ? whole_blocks(random, std::lcm(a.block_cols, b.block_rows), options.largest)
          : dense_size(random, options.largest);
  const std::int64_t batch = random.chance(0.6) ? 1 : random.between(2, 4);
  a.batch = random.chance(0.7) ? batch : 1;
  b.batch = random.chance(0.7) ? batch : 1;
  const std::int64_t out_batch = std::max(a.batch, b.batch);
  if (options.fp8) a.dtype = fp8_type(random), b.dtype = fp8_type(random);
  make_operands(random, c.memory, dtype, a, b, c.problem.a, c.problem.b, Layout::wild);
  if (options.fp8) draw_factors(random, c.memory, c.problem);
  std::vector<std::int64_t> shape{a.rows, b.cols};
  if (out_batch != 1 || random.chance(0.1)) shape.insert(shape.begin(), out_batch);
  if (options.epilogue) draw_epilogue(c, shape, out_batch, false);
  make_output(c, shape, random.chance(0.7) ? dtype : float_type(random));
  return made;
}

std::unique_ptr<Case<SddmmProblem>> sddmm_case(std::uint64_t seed, const ProductOptions& options) {
  auto made = std::make_unique<Case<SddmmProblem>>(seed);
  Case<SddmmProblem>& c = *made;
  Random& random = c.random;
  c.text = "sddmm_case(" + std::to_string(seed) + ")";
  const DType dtype = options.dtype.value_or(float_type(random));
  const std::int64_t block_rows = block_size(random, options.largest);
  const std::int64_t block_cols = block_size(random, options.largest);
  Draft a, b;
  a.transposed = random.chance(0.4);
  b.transposed = random.chance(0.4);
  a.rows = whole_blocks(random, block_rows, options.largest);
  b.cols = whole_blocks(random, block_cols, options.largest);
  a.cols = b.rows = dense_size(random, options.largest);
  const std::int64_t batch = random.chance(0.6) ? 1 : random.between(2, 4);
  a.batch = random.chance(0.7) ? batch : 1;
  b.batch = random.chance(0.7) ? batch : 1;
  make_operands(random, c.memory, dtype, a, b, c.problem.a, c.problem.b, Layout::wild);
  if (random.chance(0.5)) c.problem.alpha = static_cast<float>(random.normal());
  if (random.chance(0.4)) c.problem.beta = static_cast<float>(random.normal());
  c.problem.out = wild_bsr(random, c.memory, a.rows, b.cols, block_rows, block_cols,
                           random.chance(0.7) ? dtype : float_type(random), batch, true)
                      .matrix;
  if (c.problem.beta != 0) c.memory.fill_normal(c.problem.out.values);
  c.former = oracle::read(c.problem.out.values);
  return made;
}

std::unique_ptr<Case<SpgemmProblem>> spgemm_case(std::uint64_t seed,
                                                 const ProductOptions& options) {
  auto made = std::make_unique<Case<SpgemmProblem>>(seed);
  Case<SpgemmProblem>& c = *made;
  Random& random = c.random;
  c.text = "spgemm_case(" + std::to_string(seed) + ")";
  Draft a, b;
  a.sparse = b.sparse = true;
  a.transposed = random.chance(0.4);
  b.transposed = random.chance(0.4);
  a.block_rows = block_size(random, options.largest);
  a.block_cols = b.block_rows = block_size(random, options.largest);
  b.block_cols = block_size(random, options.largest);
  a.rows = whole_blocks(random, a.block_rows, options.largest);
  a.cols = b.rows = whole_blocks(random, a.block_cols, options.largest);
  b.cols = whole_blocks(random, b.block_cols, options.largest);
  make_operands(random, c.memory, options.dtype.value_or(float_type(random)), a, b, c.problem.a,
                c.problem.b, Layout::wild);
  if (random.chance(0.5)) c.problem.alpha = static_cast<float>(random.normal());
  if (random.chance(0.4)) c.problem.beta = static_cast<float>(random.normal());
  return made;
}

BsrMatrix output_for(Case<SpgemmProblem>& c, const Pattern& pattern, DType dtype, DType index) {
  const SpgemmProblem& problem = c.problem;
  const BsrMatrix &left = problem.a.sparse, &right = problem.b.sparse;
  const std::int64_t rows = problem.a.transposed ? left.block_cols() : left.block_rows();
  const std::int64_t cols = problem.b.transposed ? right.block_rows() : right.block_cols();
  BsrMatrix out;
  out.rows = pattern.rows * rows;
  out.cols = pattern.cols * cols;
  out.values = c.memory.output(dtype, {pattern.stored(), rows, cols}, Layout::wild);
  if (problem.beta != 0) c.memory.fill_normal(out.values);
  c.former = oracle::read(out.values);
  out.row_offsets = c.memory.output(index, {pattern.rows + 1}, Layout::contiguous);
  out.col_indices = c.memory.output(index, {pattern.stored()}, Layout::contiguous);
  const auto write = [](const Tensor& list, const std::vector<std::int64_t>& values) {
    oracle::DenseArray array({static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), array.values.begin());
    oracle::write(list, array);
  };
  write(out.row_offsets, pattern.offsets);
  write(out.col_indices, pattern.indices);
  return out;
}

}  // namespace tessera::generate
