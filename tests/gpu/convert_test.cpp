// Conversions and schedules on a GPU against those in host memory, byte by byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/kernels/cuda/backend.hpp"
#include "src/walk/schedule.hpp"
#include "src/walk/transposed_lists.hpp"
#include "tests/fixtures/conversions.hpp"
#include "tests/gpu/graph.hpp"
#include "tests/gpu/twin.hpp"

namespace tessera {
namespace {

using conversions::Case;
using conversions::get;
using conversions::put;
using generate::Random;
using gpu_test::check;
using gpu_test::Graph;
using gpu_test::Twin;

constexpr Device kGpu{DeviceKind::cuda, 0};

BsrMatrix on_device(const Twin& twin, const BsrMatrix& m) {
  return {twin.on_device(m.values), twin.on_device(m.row_offsets), twin.on_device(m.col_indices),
          m.rows, m.cols};
}

Case on_device(const Twin& twin, Case c) {
  c.matrix = on_device(twin, c.matrix);
  c.gathered = on_device(twin, c.gathered);
  for (Tensor* t : {&c.dense, &c.scattered, &c.largest, &c.squares, &c.scores,
                    &c.selected.row_offsets, &c.selected.col_indices, &c.selected.count,
                    &c.columns.col_offsets, &c.columns.row_indices, &c.columns.positions})
    *t = twin.on_device(*t);
  return c;
}

/// Memory on the GPU, filled with 0xa5.
class Memory {
 public:
  explicit Memory(std::int64_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), "cudaMalloc");
    check(cudaMemset(data_, 0xA5, static_cast<std::size_t>(bytes)), "cudaMemset");
  }
  ~Memory() { cudaFree(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  Buffer buffer() const { return {data_, bytes_}; }
  std::vector<char> download() const {
    std::vector<char> copy(static_cast<std::size_t>(bytes_));
    check(cudaMemcpy(copy.data(), data_, copy.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return copy;
  }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_;
};

constexpr std::size_t kTwinBytes = std::size_t{24} << 20;

TEST(Convert, GpuWritesWhatTheCpuWrites) {
  Random random(81);
  for (int round = 0; round < 120; ++round) {
    Twin twin(kTwinBytes);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    const Case c = conversions::make(random, carve);
    SCOPED_TRACE(c.text);
    twin.upload();
    conversions::convert(on_device(twin, c));
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    conversions::convert(c);
    ASSERT_TRUE(twin.download() == twin.host()) << "the GPU's memory differs from the CPU's";
  }
}

/// Wide enough for several tiles of lines, and tall enough for several bands in a chunk.
TEST(Convert, LargeListsAreTransposed) {
  Twin twin(kTwinBytes);
  Random random(82);
  const std::int64_t rows = 5000, cols = 9000;
  const Pattern pattern = patterns::power_law(rows, cols, 0.004, 0.8, 82);
  const HostBsr made = make_bsr(pattern, 1, 1, DType::f16, DType::i64);
  const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
  conversions::Maker maker(random, carve);
  const std::int64_t stored = pattern.stored();
  BsrMatrix m = made.view();
  m.values.data = carve(DType::f16, stored);
  m.row_offsets = maker.list(DType::i64, {rows + 1});
  m.col_indices = maker.list(DType::i64, {stored});
  for (std::int64_t i = 0; i <= rows; ++i) put(m.row_offsets, i, get(made.row_offsets, i));
  for (std::int64_t p = 0; p < stored; ++p) put(m.col_indices, p, get(made.col_indices, p));
  const ColumnLists out{maker.list(DType::i64, {cols + 1}), maker.list(DType::i64, {stored}),
                        maker.list(DType::i64, {stored})};
  twin.upload();
  transpose_lists(on_device(twin, m),
                  {twin.on_device(out.col_offsets), twin.on_device(out.row_indices),
                   twin.on_device(out.positions)});
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  transpose_lists(m, out);
  EXPECT_TRUE(twin.download() == twin.host());
}

TEST(Convert, ManyBlocksAreChosen) {
  for (const std::int64_t keep : {1, 12345, 699999, 700000}) {
    Twin twin(kTwinBytes);
    Random random(83);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    conversions::Maker maker(random, carve);
    const std::int64_t rows = 1000, cols = 700;
    const Tensor norms = tensor(carve(DType::f32, rows * cols), DType::f32, {rows, cols});
    for (std::int64_t i = 0; i < rows * cols; ++i)
      static_cast<float*>(norms.data)[i] = static_cast<float>(std::abs(random.normal()));
    const SelectedBlocks out{maker.list(DType::i32, {rows + 1}),
                             maker.list(DType::i32, {rows * cols}), maker.list(DType::i32, {1})};
    twin.upload();
    select_blocks(twin.on_device(norms), {.keep = keep},
                  {twin.on_device(out.row_offsets), twin.on_device(out.col_indices),
                   twin.on_device(out.count)});
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    select_blocks(norms, {.keep = keep}, out);
    EXPECT_EQ(get(out.count, 0), keep);
    EXPECT_TRUE(twin.download() == twin.host()) << keep;
  }
}

TEST(Convert, CapturedConversionsFollowTheContents) {
  Twin twin(kTwinBytes);
  Random random(84);
  const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
  Case c = conversions::make(random, carve);
  while (c.matrix.stored_blocks() < 20 || c.matrix.row_offsets.rank > 1 || !c.choice.keep)
    c = conversions::make(random, carve);
  const Case device = on_device(twin, c);
  const Memory workspace(
      std::max(select_blocks_workspace(device.scores), transpose_lists_workspace(device.matrix)));
  const Graph graph([&](void* stream) {
    conversions::convert(device, {.stream = stream, .workspace = workspace.buffer()});
  });
  for (int round = 0; round < 3; ++round) {
    // Mirrors the columns and changes the order of the scores.
    for (std::int64_t i = 0; i < c.rows; ++i) {
      const std::int64_t begin = get(c.matrix.row_offsets, i),
                         end = get(c.matrix.row_offsets, i + 1);
      std::vector<std::int64_t> mirrored;
      for (std::int64_t p = end; p-- > begin;)
        mirrored.push_back(c.cols - 1 - get(c.matrix.col_indices, p));
      for (std::int64_t p = begin; p < end; ++p)
        put(c.matrix.col_indices, p, mirrored[static_cast<std::size_t>(p - begin)]);
    }
    for (std::int64_t i = 0; i < c.rows * c.cols; ++i) {
      float& score = static_cast<float*>(
          c.scores.data)[i / c.cols * c.scores.stride(0) + i % c.cols * c.scores.stride(1)];
      score = 1.0f - score * 2.0f;
    }
    twin.upload();
    graph.replay();
    conversions::convert(c);
    ASSERT_TRUE(twin.download() == twin.host()) << c.text << " round " << round;
  }
}

TEST(Convert, HostileListsStayInside) {
  const std::int64_t hostile[] = {0,
                                  1,
                                  -1,
                                  -7,
                                  3,
                                  99,
                                  std::numeric_limits<std::int32_t>::min(),
                                  std::numeric_limits<std::int32_t>::max()};
  Random random(85);
  for (int round = 0; round < 60; ++round) {
    Twin twin(kTwinBytes);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    const Case c = conversions::make(random, carve);
    SCOPED_TRACE(c.text);
    for (const Tensor* list : {&c.matrix.row_offsets, &c.matrix.col_indices})
      for (std::int64_t i = 0; i < list->numel(); ++i)
        if (random.chance(0.5)) put(*list, i, hostile[random.between(0, 7)]);
    twin.upload();
    conversions::convert(on_device(twin, c));
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    std::vector<std::byte> copy = twin.download();
    const auto expect_inside = [&](const Tensor& list, std::int64_t low, std::int64_t high) {
      const Tensor there = twin.inside(list, copy);
      for (std::int64_t i = 0; i < list.numel(); ++i) {
        ASSERT_GE(get(there, i), low);
        ASSERT_LE(get(there, i), high);
      }
    };
    const std::int64_t stored = c.matrix.stored_blocks();
    expect_inside(c.columns.col_offsets, 0, stored);
    expect_inside(c.columns.row_indices, -1, c.rows - 1);  // -1: never written
    expect_inside(c.columns.positions, -1, stored - 1);
  }
}

/// Compares the schedule of a product with the lists that the host transposes.
void expect_schedule(const BsrMatrix& m, std::int64_t batch, const planning::GpuLists& found,
                     const std::string& text) {
  const std::int64_t lines = found.lines, stored = found.stored;
  const bool batched = m.row_offsets.rank == 2 || m.col_indices.rank == 2;
  std::vector<std::int32_t> offsets(static_cast<std::size_t>(batch * (lines + 1))),
      rows(static_cast<std::size_t>(batch * stored)), positions(rows.size());
  const auto list = [&](std::vector<std::int32_t>& memory) {
    const auto n = static_cast<std::int64_t>(memory.size());
    return batched ? tensor(memory.data(), DType::i32, {batch, n / batch})
                   : tensor(memory.data(), DType::i32, {n});
  };
  transpose_lists(m, {list(offsets), list(rows), list(positions)});
  const planning::Indices got_offsets = found.offsets, got_rows = found.rows,
                          got_positions = found.positions, got_order = found.order;
  for (std::int64_t b = 0; b < batch; ++b) {
    std::vector<std::int64_t> lengths;
    const auto offset = [&](std::int64_t j) {
      return std::int64_t{offsets[static_cast<std::size_t>(b * (lines + 1) + j)]};
    };
    for (std::int64_t j = 0; j < lines; ++j) {
      lengths.push_back(offset(j + 1) - offset(j));
      ASSERT_EQ(got_offsets[b * (lines + 1) + j + 1], offset(j + 1)) << text;
    }
    for (std::int64_t e = b * stored; e < b * stored + offset(lines); ++e) {
      ASSERT_EQ(got_rows[e], rows[static_cast<std::size_t>(e)]) << text;
      ASSERT_EQ(got_positions[e], positions[static_cast<std::size_t>(e)]) << text;
    }
    const std::vector<std::int64_t> order = planning::longest_first(lengths);
    for (std::int64_t j = 0; j < lines; ++j)
      ASSERT_EQ(got_order[b * lines + j], order[static_cast<std::size_t>(j)]) << text;
  }
}

TEST(Schedule, HoldsTransposedListsAndTheOrderOfLines) {
  Random random(86);
  for (int round = 0; round < 60; ++round) {
    Twin twin(kTwinBytes);
    const auto carve = [&](DType dtype, std::int64_t n) { return twin.carve(dtype, n); };
    const Case c = conversions::make(random, carve);
    // The transposed sparse matrix as a, or the sparse matrix as b.
    const bool left = random.chance(0.5);
    MatmulProblem problem;
    const Operand sparse(on_device(twin, c.matrix));
    const std::int64_t k = c.matrix.rows;
    const Tensor dense = left ? tensor(nullptr, c.matrix.values.dtype, {k, 8}, kGpu)
                              : tensor(nullptr, c.matrix.values.dtype, {8, k}, kGpu);
    problem.a = left ? transpose(sparse) : Operand(dense);
    problem.b = left ? Operand(dense) : sparse;
    const std::int64_t m = left ? c.matrix.cols : 8, n = left ? 8 : c.matrix.cols;
    problem.out = tensor(nullptr, DType::f32, {c.batch, m, n}, kGpu);
    const planning::AnyShape shape = planning::shape_of(AnyProblem(problem));
    const auto& s = std::get<planning::MatmulShape>(shape);
    const std::int64_t bytes = planning::gpu_matmul_schedule_bytes(s);
    const Memory memory(std::max<std::int64_t>(bytes, 1));
    const planning::Planned planned{};
    const AnyProblem any(problem);
    const Graph graph([&](void* stream) {
      cuda::prepare({planned, any, shape, nullptr, memory.buffer().data, stream});
    });
    // Captured before the lists were uploaded; replayed with them and with other columns.
    for (int replay = 0; replay < 2; ++replay) {
      const Tensor& columns = c.matrix.col_indices;
      if (replay == 1 && c.matrix.row_offsets.rank == 1) {
        for (std::int64_t i = 0; i < c.rows; ++i) {  // the first columns of each row
          const std::int64_t begin = get(c.matrix.row_offsets, i);
          for (std::int64_t p = begin; p < get(c.matrix.row_offsets, i + 1); ++p)
            put(columns, p, p - begin);
        }
      }
      twin.upload();
      graph.replay();
      std::vector<char> copy = memory.download();
      core::Carver carver(copy.data());
      const auto schedule = planning::carve_gpu_matmul_schedule(carver, s);
      expect_schedule(c.matrix, planning::list_batches(c.matrix), left ? schedule.a : schedule.b,
                      c.text);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(GpuStreams, HaveANumberUnlessTheyAreCaptured) {
  EXPECT_TRUE(cuda::uncaptured_stream(0, nullptr));
  EXPECT_EQ(cuda::uncaptured_stream(0, nullptr), cuda::uncaptured_stream(0, nullptr));
  bool captured = false;
  const Graph graph([&](void* stream) { captured = !cuda::uncaptured_stream(0, stream); });
  EXPECT_TRUE(captured);
}

}  // namespace
}  // namespace tessera
