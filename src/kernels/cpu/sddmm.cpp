#include <algorithm>
#include <vector>

#include "src/kernels/cpu/backend.hpp"
#include "src/kernels/cpu/parallel.hpp"
#include "src/kernels/cpu/product_setup.hpp"

namespace tessera::cpu {
namespace {

class Sddmm {
 public:
  Sddmm(const SddmmProblem& problem, const planning::SddmmShape& shape, const Resources& resources)
      : problem_(problem),
        shape_(shape),
        context_(resources.row, resources.workspace, planning::sampled_packed_floats(shape),
                 resources.threads),
        height_(shape.out.block.rows),
        width_(shape.out.block.cols) {}

  void run() {
    const std::int64_t columns = shape_.n / width_;
    const std::int64_t column_floats = shape_.k * pad_lanes(width_);
    const std::int64_t pass =
        column_floats == 0 ? columns : context_.packed_capacity() / column_floats;
    for (std::int64_t batch = 0; batch < shape_.batch; ++batch)
      for (std::int64_t j = 0; j < columns; j += pass)
        run_pass(batch, j, std::min(j + pass, columns));
  }

 private:
  /// The stored blocks in columns of blocks [begin, end).
  void run_pass(std::int64_t batch, std::int64_t begin, std::int64_t end) {
    const BlockLists lists = lists_by_row(problem_.out, batch);
    const std::int64_t lines = shape_.m / height_;
    const MatrixView b = dense_view(problem_.b.dense, problem_.b.transposed, batch);
    std::vector<char> used(static_cast<std::size_t>(end - begin));
    for (std::int64_t i = 0; i < lines; ++i) {
      const planning::BsrRow row = lists.line(i);
      for (std::int64_t e = row.begin; e < row.end; ++e)
        if (const std::int64_t j = row.column(e); j >= begin && j < end)
          used[static_cast<std::size_t>(j - begin)] = 1;
    }
    std::vector<ProductContext::PackJob> packs;
    for (std::int64_t j = begin; j < end; ++j)
      if (used[static_cast<std::size_t>(j - begin)])
        packs.push_back({b, j * width_, width_, packed_column(j - begin)});
    context_.pack(packs);
    const std::int64_t pieces = (height_ + planning::kMaxTileRows - 1) / planning::kMaxTileRows;
    parallel_for(context_.threads(), lines * pieces, [&](int thread, std::int64_t item) {
      run_line(context_.thread(thread), lists, batch, item / pieces,
               item % pieces * planning::kMaxTileRows, begin, end);
    });
  }

  PackedRight packed_column(std::int64_t index) const {
    const Simd& isa = context_.isa();
    return {context_.packed() + index * shape_.k * pad_lanes(width_), shape_.k, Strips(width_, isa),
            isa.lanes};
  }

  /// Computes one line's blocks, as many at a time as fit the tile, so that the left rows are
  /// converted once for all of them.
  void run_line(ProductContext::Thread& thread, const BlockLists& lists, std::int64_t batch,
                std::int64_t line, std::int64_t skip, std::int64_t begin, std::int64_t end) const {
    const MatrixView a = dense_view(problem_.a.dense, problem_.a.transposed, batch);
    const int rows = static_cast<int>(std::min(planning::kMaxTileRows, height_ - skip));
    thread.terms.clear();
    if (shape_.k > 0) thread.terms.push_back({(line * height_ + skip) * a.row, 0, shape_.k});
    const auto block_at = [&](std::int64_t entry) {
      return block_output(problem_.out, batch, entry * pool_stride(problem_.out), problem_.alpha,
                          problem_.beta);
    };
    const planning::BsrRow row = lists.line(line);
    std::int64_t e = row.begin;
    while (e < row.end && row.column(e) < begin) ++e;
    while (e < row.end && row.column(e) < end) {
      const PackedRight first = packed_column(row.column(e) - begin);
      const std::int64_t padded = static_cast<std::int64_t>(first.strips.vectors) * first.lanes;
      const std::int64_t room = std::max<std::int64_t>(context_.tile().n / padded, 1);
      std::int64_t taken = 0;
      if (padded <= context_.tile().n) {
        thread.strips.clear();
        for (; taken < room && e + taken < row.end && row.column(e + taken) < end; ++taken) {
          const PackedRight right = packed_column(row.column(e + taken) - begin);
          for (int s = 0; s < right.strips.count; ++s)
            thread.strips.push_back({right.strip(s), right.strips.width(s)});
        }
        context_.multiply(thread, a, rows, taken * padded);
        for (std::int64_t i = 0; i < taken; ++i)
          store_tile(context_.isa(), thread.scratch.c + i * padded, taken * padded, rows,
                     static_cast<int>(width_), block_at(e + i).from(skip, 0), thread.scratch);
      } else {  // a block wider than the tile
        const int step = context_.strips_per_tile();
        for (int s = 0; s < first.strips.count; s += step)
          context_.multiply_and_store(thread, a, rows, first, s,
                                      std::min(s + step, first.strips.count), width_,
                                      block_at(e).from(skip, 0));
        taken = 1;
      }
      e += taken;
    }
  }

  const SddmmProblem& problem_;
  const planning::SddmmShape& shape_;
  ProductContext context_;
  std::int64_t height_, width_;
};

}  // namespace

void run(const SddmmProblem& problem, const planning::SddmmShape& shape,
         const Resources& resources) {
  if (shape.m == 0 || shape.n == 0 || shape.batch == 0 || shape.out.stored == 0) return;
  Sddmm(problem, shape, resources).run();
}

}  // namespace tessera::cpu
