#include <algorithm>
#include <utility>
#include <vector>

#include "src/core/check_lists.hpp"
#include "src/kernels/cpu/backend.hpp"
#include "src/kernels/cpu/parallel.hpp"
#include "src/kernels/cpu/product_setup.hpp"
#include "src/walk/schedule.hpp"

namespace tessera::cpu {
namespace {

using core::read_index;
using planning::MatmulSchedule;
using planning::MatmulShape;

/// One batch or group of a product, with sides chosen: out[m, n] = left[m, k] * right[k, n].
struct Job {
  std::int64_t m = 0, n = 0, k = 0;
  MatrixView left, right;
  // Sparse left: its lists, and height and depth of a block in the product.
  bool sparse_left = false;
  BlockLists left_lists;
  const std::int64_t* order = nullptr;
  std::int64_t height = 0, depth = 0, left_stride = 0;
  // Both sparse: the right operand's lists by column of op(B), with blocks of depth x width.
  bool sparse_right = false;
  BlockLists right_lists;
  std::int64_t width = 0;
  TileOutput out;

  bool shares_right_of(const Job& o) const {
    return right.data == o.right.data && right.scale.data == o.right.scale.data && k == o.k &&
           n == o.n;
  }
  std::int64_t lines(const planning::Tile& tile) const {
    if (!sparse_left) return (m + tile.m - 1) / tile.m;
    return height == 0 ? 0 : m / height * pieces();
  }
  /// Number of pieces per block: blocks taller than a tile are computed in pieces.
  std::int64_t pieces() const {
    return (height + planning::kMaxTileRows - 1) / planning::kMaxTileRows;
  }
};

/// The output of one batch, from `first_row` on; `group` selects the bias if each group has its
/// own.
TileOutput output_of(const MatmulProblem& p, std::int64_t batch, std::int64_t group,
                     std::int64_t first_row) {
  const Epilogue& e = p.epilogue;
  TileOutput o;
  const MatrixView out = dense_view(p.out, false, batch);
  o.out = const_cast<char*>(out.data);
  o.out_dtype = out.dtype;
  o.out_row = out.row;
  o.out_col = out.col;
  o.alpha = e.alpha;
  o.beta = e.beta;
  o.activation = e.activation;
  if (e.beta != 0.0f) {
    const MatrixView c = e.c ? dense_view(e.c, false, batch) : out;
    o.c = c.data;
    o.c_dtype = c.dtype;
    o.c_row = c.row;
    o.c_col = c.col;
  }
  if (e.bias) {
    const Tensor& b = e.bias;
    o.bias = static_cast<const char*>(b.data);
    if (b.rank == 2 && b.size(0) > 1) o.bias += group * b.stride(0) * size_of(b.dtype);
    o.bias_dtype = b.dtype;
    (e.bias_axis == BiasAxis::row ? o.bias_row : o.bias_col) = b.stride(b.rank - 1);
  }
  return o.from(first_row, 0);
}

class Matmul {
 public:
  Matmul(const MatmulProblem& problem, const MatmulShape& shape, const Resources& resources)
      : problem_(problem),
        shape_(shape),
        sides_(planning::product_sides(shape)),
        context_(resources.row, resources.workspace, capacity(), resources.threads) {
    core::Carver carver(resources.schedule);
    schedule_ = planning::carve_matmul_schedule(carver, shape);
  }

  void run() {
    make_jobs();
    if (shape_.a.sparse && shape_.b.sparse) return run_both_sparse();
    for (std::size_t begin = 0; begin < jobs_.size();) begin = run_pass(begin);
  }

 private:
  std::int64_t capacity() const {
    return planning::packed_floats(sides_.right_rows, sides_.right_cols, shape_.batch);
  }

  void make_jobs() {
    jobs_.reserve(static_cast<std::size_t>(shape_.batch));
    for (std::int64_t batch = 0; batch < shape_.batch; ++batch) {
      std::int64_t begin = 0, length = shape_.grouped ? 0 : shape_.m;
      if (shape_.grouped) {
        const Tensor& offsets = problem_.group_offsets;
        begin = read_index(offsets, batch * offsets.stride(0));
        length = read_index(offsets, (batch + 1) * offsets.stride(0)) - begin;
      }
      jobs_.push_back(make_job(batch, begin, length));
    }
  }

  Job make_job(std::int64_t batch, std::int64_t begin, std::int64_t length) const {
    const bool by_rows = shape_.grouped && shape_.group_axis == GroupAxis::rows;
    const bool by_inner = shape_.grouped && shape_.group_axis == GroupAxis::inner;
    Job job;
    job.m = by_rows ? length : shape_.m;
    job.n = shape_.n;
    job.k = by_inner ? length : shape_.k;
    job.out = output_of(problem_, by_rows ? 0 : batch, batch, by_rows ? begin : 0);
    MatrixView a, b;
    if (!shape_.a.sparse) {
      a = dense_view(problem_.a, batch);
      if (by_rows) a = a.from(begin, 0);
      if (by_inner) a = a.from(0, begin);
    }
    if (!shape_.b.sparse) {
      b = dense_view(problem_.b, batch);
      if (by_inner) b = b.from(begin, 0);
    }
    if (sides_.swapped) {
      std::swap(job.m, job.n);
      job.out = job.out.turned();
      job.left = b.turned();
      job.right = a.turned();
    } else {
      job.left = a;
      job.right = b;
    }
    if (shape_.a.sparse) set_sparse_left(job, problem_.a, problem_.a.transposed, batch);
    if (sides_.swapped && shape_.b.sparse)
      set_sparse_left(job, problem_.b, !problem_.b.transposed, batch);
    if (shape_.a.sparse && shape_.b.sparse) {
      const BsrMatrix& matrix = problem_.b.sparse;
      job.sparse_right = true;
      job.right = pool_view(matrix, problem_.b.transposed, batch);
      job.right.scale = pool_factors(problem_.b, job.right.block_rows, batch);
      job.right_lists = (problem_.b.transposed ? lists_by_row(matrix, batch)
                                               : lists_by_column(schedule_.b, matrix, batch));
      job.width = problem_.b.transposed ? matrix.block_rows() : matrix.block_cols();
    }
    return job;
  }

  // `turned`: the left operand's lines are columns of the stored matrix.
  void set_sparse_left(Job& job, const Operand& operand, bool turned, std::int64_t batch) const {
    const BsrMatrix& matrix = operand.sparse;
    job.sparse_left = true;
    job.left = pool_view(matrix, turned, batch);
    job.left.scale = pool_factors(operand, job.left.block_rows, batch);
    job.left_stride = pool_stride(matrix);
    job.height = turned ? matrix.block_cols() : matrix.block_rows();
    job.depth = turned ? matrix.block_rows() : matrix.block_cols();
    const planning::ListBuffers& prepared = shape_.a.sparse ? schedule_.a : schedule_.b;
    job.left_lists =
        turned ? lists_by_column(prepared, matrix, batch) : lists_by_row(matrix, batch);
    const std::int64_t list_batch = list_batches(matrix) == 1 ? 0 : batch;
    job.order = schedule_.order + list_batch * planning::left_lines(shape_);
  }

  PackedRight packed_at(std::int64_t offset, std::int64_t rows, std::int64_t cols) const {
    const Simd& isa = context_.isa();
    return {context_.packed() + offset, rows, Strips(cols, isa), isa.lanes};
  }

  /// Runs the jobs from `begin` on whose right operands fit into the packing buffer together
  /// (shared operands counted once). A right operand that does not fit is processed in slices of
  /// columns. Returns the next job.
  std::size_t run_pass(std::size_t begin) {
    const std::int64_t room = context_.packed_capacity();
    std::vector<ProductContext::PackJob> packs;
    std::vector<Part> parts;
    std::int64_t used = 0;
    std::size_t end = begin;
    for (; end < jobs_.size(); ++end) {
      const Job& job = jobs_[end];
      const bool shared = end > begin && job.shares_right_of(jobs_[end - 1]);
      const std::int64_t floats = job.k * pad_lanes(job.n);
      if (!shared && end > begin && used + floats > room) break;
      if (!shared) {
        if (floats > room) return run_in_slices(begin);
        packs.push_back({job.right, 0, job.n, packed_at(used, job.k, job.n)});
        used += floats;
      }
      parts.push_back({&job, packs.size() - 1, 0, job.n});
    }
    context_.pack(packs);
    compute(packs, parts);
    return end;
  }

  std::size_t run_in_slices(std::size_t begin) {
    const Job& first = jobs_[begin];
    std::size_t end = begin + 1;
    while (end < jobs_.size() && jobs_[end].shares_right_of(first)) ++end;
    const std::int64_t slice = context_.columns_per_pass(first.k);
    for (std::int64_t col = 0; col < first.n; col += slice) {
      const std::int64_t cols = std::min(slice, first.n - col);
      const std::vector<ProductContext::PackJob> packs = {
          {first.right, col, cols, packed_at(0, first.k, cols)}};
      context_.pack(packs);
      std::vector<Part> parts;
      for (std::size_t i = begin; i < end; ++i) parts.push_back({&jobs_[i], 0, col, cols});
      compute(packs, parts);
    }
    return end;
  }

  /// Columns [col, col + cols) of a job, with one packed operand.
  struct Part {
    const Job* job;
    std::size_t pack;
    std::int64_t col, cols;
  };

  /// Strips per work item. A tall tile reuses a strip often enough to take many; rows of small
  /// blocks gather from the whole strip, which has to stay in the L2 cache.
  int strips_per_item(const Job& job, const PackedRight& right) const {
    const int most = context_.strips_per_tile();
    if (!job.sparse_left || job.height >= context_.tile().m) return most;
    constexpr std::int64_t kCachedFloats = std::int64_t{192} * 1024;
    const std::int64_t strip = right.rows * planning::kMaxStrip;
    return static_cast<int>(
        std::clamp<std::int64_t>(kCachedFloats / std::max<std::int64_t>(strip, 1), 1, most));
  }

  void compute(const std::vector<ProductContext::PackJob>& packs, const std::vector<Part>& parts) {
    struct Item {
      const Part* part;
      int strip_begin, strip_end;
      std::int64_t line;
    };
    std::vector<Item> items;
    for (const Part& part : parts) {
      const PackedRight& right = packs[part.pack].right;
      const int step = strips_per_item(*part.job, right);
      const std::int64_t lines = part.job->lines(context_.tile());
      for (int s = 0; s < right.strips.count; s += step)
        for (std::int64_t line = 0; line < lines; ++line)
          items.push_back({&part, s, std::min(s + step, right.strips.count), line});
    }
    parallel_for(context_.threads(), static_cast<std::int64_t>(items.size()),
                 [&](int thread, std::int64_t i) {
                   const Item& item = items[static_cast<std::size_t>(i)];
                   compute_tile(context_.thread(thread), *item.part, packs[item.part->pack].right,
                                item.strip_begin, item.strip_end, item.line);
                 });
  }

  struct Rows {
    std::int64_t first;
    int count;
  };

  /// Returns the rows of a line, and writes the terms that compute them.
  Rows walk_line(const Job& job, std::int64_t line, std::vector<Term>& terms) const {
    terms.clear();
    if (!job.sparse_left) {
      const std::int64_t first = line * context_.tile().m;
      if (job.k > 0) terms.push_back({first * job.left.row, 0, job.k, first, 0});
      return {first, static_cast<int>(std::min<std::int64_t>(context_.tile().m, job.m - first))};
    }
    const std::int64_t block = job.order[line / job.pieces()];
    const std::int64_t skip = line % job.pieces() * planning::kMaxTileRows;
    const planning::BsrRow row = job.left_lists.line(block);
    for (std::int64_t e = row.begin; e < row.end; ++e) {
      const std::int64_t position = job.left_lists.position(e);
      terms.push_back({position * job.left_stride + skip * job.left.row, row.column(e) * job.depth,
                       job.depth, position * job.height + skip, 0});
    }
    return {block * job.height + skip,
            static_cast<int>(std::min(planning::kMaxTileRows, job.height - skip))};
  }

  void compute_tile(ProductContext::Thread& thread, const Part& part, const PackedRight& right,
                    int strip_begin, int strip_end, std::int64_t line) const {
    const Job& job = *part.job;
    const Rows rows = walk_line(job, line, thread.terms);
    context_.multiply_and_store(thread, job.left, rows.count, right, strip_begin, strip_end,
                                part.cols, job.out.from(rows.first, part.col));
  }

  void run_both_sparse() {
    for (const Job& job : jobs_) {
      const std::int64_t pool_rows = sides_.right_rows;
      const std::int64_t slice = context_.columns_per_pass(pool_rows);
      for (std::int64_t col = 0; col < job.width; col += slice) {
        const std::int64_t cols = std::min(slice, job.width - col);
        const std::vector<ProductContext::PackJob> packs = {
            {job.right, col, cols, packed_at(0, pool_rows, cols)}};
        context_.pack(packs);
        const std::int64_t columns = job.n / job.width;
        const std::int64_t lines = job.lines(context_.tile());
        parallel_for(context_.threads(), lines * columns, [&](int index, std::int64_t item) {
          compute_pairs(context_.thread(index), job, packs[0].right, item / columns, item % columns,
                        col, cols);
        });
      }
    }
  }

  /// Computes one row of A's blocks times one column of B's blocks: the products of the blocks that
  /// both lists name.
  void compute_pairs(ProductContext::Thread& thread, const Job& job, const PackedRight& right,
                     std::int64_t line, std::int64_t column, std::int64_t col,
                     std::int64_t cols) const {
    const Rows rows = walk_line(job, line, thread.terms);
    meet(job, job.right_lists.line(column), thread);
    const TileOutput to = job.out.from(rows.first, column * job.width + col);
    const int step = context_.strips_per_tile();
    for (int s = 0; s < right.strips.count; s += step) {
      context_.multiply_and_store(thread, job.left, rows.count, right, s,
                                  std::min(s + step, right.strips.count), cols, to);
    }
  }

  /// Replaces the terms of a row of A by their overlaps with the blocks of a column of B. Both
  /// lists are sorted; the blocks may differ in depth.
  void meet(const Job& job, const planning::BsrRow& column, ProductContext::Thread& thread) const {
    const std::int64_t depth = job.right.block_rows;  // depth of B's blocks
    std::vector<Term>& met = thread.met;
    met.clear();
    std::int64_t e = column.begin;
    for (const Term& term : thread.terms) {
      const std::int64_t end = term.right_row + term.depth;
      while (e < column.end && (column.column(e) + 1) * depth <= term.right_row) ++e;
      for (std::int64_t f = e; f < column.end && column.column(f) * depth < end; ++f) {
        const std::int64_t block = column.column(f) * depth;
        const std::int64_t from = std::max(term.right_row, block);
        met.push_back({term.left + (from - term.right_row) * job.left.col,
                       job.right_lists.position(f) * depth + from - block,
                       std::min(end, block + depth) - from, term.left_row, 0});
      }
    }
    thread.terms.swap(met);
  }

  const MatmulProblem& problem_;
  const MatmulShape& shape_;
  planning::ProductSides sides_;
  ProductContext context_;
  MatmulSchedule schedule_;
  std::vector<Job> jobs_;
};

}  // namespace

void run(const MatmulProblem& problem, const planning::MatmulShape& shape,
         const Resources& resources) {
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0) return;
  Matmul(problem, shape, resources).run();
}

void prepare(const MatmulProblem& problem, const planning::MatmulShape& shape,
             const planning::KernelRow&, void* schedule) {
  core::Carver carver(schedule);
  const MatmulSchedule buffers = planning::carve_matmul_schedule(carver, shape);
  if (buffers.a.offsets) write_transposed_lists(problem.a.sparse, buffers.a);
  if (buffers.b.offsets) write_transposed_lists(problem.b.sparse, buffers.b);
  if (!buffers.order) return;
  const bool left_is_a = shape.a.sparse;
  const BsrMatrix& left = left_is_a ? problem.a.sparse : problem.b.sparse;
  const bool turned = left_is_a ? shape.a.transposed : !shape.b.transposed;
  const std::int64_t lines = planning::left_lines(shape);
  for (std::int64_t batch = 0; batch < list_batches(left); ++batch) {
    const BlockLists lists = turned
                                 ? lists_by_column(left_is_a ? buffers.a : buffers.b, left, batch)
                                 : lists_by_row(left, batch);
    std::vector<std::int64_t> lengths;
    for (std::int64_t i = 0; i < lines; ++i) lengths.push_back(lists.line(i).size());
    const std::vector<std::int64_t> sorted = planning::longest_first(lengths);
    std::copy(sorted.begin(), sorted.end(), buffers.order + batch * lines);
  }
}

}  // namespace tessera::cpu
