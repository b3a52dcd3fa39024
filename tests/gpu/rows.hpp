#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tessera/tessera.hpp>

#include "src/api/families.hpp"
#include "src/kernels/families.hpp"
#include "tests/gpu/twin.hpp"

// Runs problems by a given row, whichever row the cost model would choose.
namespace tessera::gpu_test {

/// A kernel row. Rows of all families are numbered in one sequence.
struct NumberedRow {
  std::string_view family;
  const planning::KernelRow* row;
};
inline const std::vector<NumberedRow>& numbered_rows() {
  static const auto rows = [] {
    std::vector<NumberedRow> all;
    for (const planning::KernelFamily& family : planning::all_families())
      for (const planning::KernelRow& row : family.rows) all.push_back({family.name, &row});
    return all;
  }();
  return rows;
}

/// The rows of one family, such as "sm90_matmul".
inline std::vector<int> rows_of(std::string_view family) {
  std::vector<int> rows;
  for (std::size_t i = 0; i < numbered_rows().size(); ++i)
    if (numbered_rows()[i].family == family) rows.push_back(static_cast<int>(i));
  return rows;
}

inline const planning::KernelRow& row_at(int row) {
  return *numbered_rows()[static_cast<std::size_t>(row)].row;
}
inline std::string name_of(int row) { return row_at(row).name; }

/// Owns device memory, filled with 0xff at first.
class Room {
 public:
  explicit Room(std::int64_t bytes) : bytes_(bytes) {
    if (bytes <= 0) return;
    check(cudaMalloc(&data_, static_cast<std::size_t>(bytes)), "cudaMalloc");
    check(cudaMemset(data_, 0xff, static_cast<std::size_t>(bytes)), "cudaMemset");
  }
  ~Room() { cudaFree(data_); }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  Buffer buffer() const { return bytes_ > 0 ? Buffer{data_, bytes_} : Buffer{}; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_;
};

/// While it lives, `plan_by` plans for a device of `units` units, so that few thread blocks have
/// many tiles each.
class FewUnits {
 public:
  explicit FewUnits(int units) { of_device() = units; }
  ~FewUnits() { of_device() = 0; }
  FewUnits(const FewUnits&) = delete;
  FewUnits& operator=(const FewUnits&) = delete;
  /// 0: as many as there are.
  static int& of_device() {
    static int units = 0;
    return units;
  }
};

/// A plan for one row, also for problems that the family would leave to another one.
template <class Problem>
Plan plan_by(int row, const Problem& problem) {
  const planning::Families families = api::families();
  const planning::FoundRow found = planning::find_row(families, name_of(row));
  DeviceFacts device = device_facts({DeviceKind::cuda, 0});
  if (FewUnits::of_device() > 0) device.units = FewUnits::of_device();
  auto planned = std::make_shared<planning::Planned>();
  planned->family = found.family;
  planned->row = found.row;
  planned->shape = planning::shape_of(AnyProblem(problem));
  planning::Reasons reasons;
  planned->layout = found.family->layout(planned->shape, *found.row, device, reasons);
  planned->buffers = found.family->buffers(planned->shape, planned->layout, *found.row, 0);
  return planning::public_plan(families, planned);
}

/// Runs a problem by one row, with buffers of its own.
template <class Problem>
void run_by(int row, const Problem& problem) {
  const Plan made = plan_by(row, problem);
  const Room workspace(made.workspace_bytes), schedule(made.schedule_bytes);
  Execution execution;
  execution.workspace = workspace.buffer();
  execution.schedule = schedule.buffer();
  if (made.schedule_bytes > 0) prepare(made, problem, execution);
  run(made, problem, execution);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

/// Enqueues a run without waiting for it, by a row that needs no buffers.
inline void enqueue_by(int row, const MatmulProblem& problem, void* stream = nullptr) {
  Execution execution;
  execution.stream = stream;
  run(plan_by(row, problem), problem, execution);
}

/// A large tensor in device memory whose bytes are all equal, except that the last `tail` entries
/// of the first dimension have another byte.
class Uniform {
 public:
  Uniform(DType dtype, std::vector<std::int64_t> shape, int byte, std::int64_t tail = 0,
          int tail_byte = 0)
      : room_(bytes_of(dtype, shape)) {
    const auto all = static_cast<std::size_t>(bytes_of(dtype, shape));
    check(cudaMemset(room_.buffer().data, byte, all), "cudaMemset");
    const std::size_t last =
        all / static_cast<std::size_t>(shape[0]) * static_cast<std::size_t>(tail);
    check(cudaMemset(static_cast<char*>(room_.buffer().data) + (all - last), tail_byte, last),
          "cudaMemset");
    tensor_ = shape.size() == 3 ? tensor(room_.buffer().data, dtype, {shape[0], shape[1], shape[2]})
                                : tensor(room_.buffer().data, dtype, {shape[0], shape[1]});
    tensor_.device = {DeviceKind::cuda, 0};
  }
  const Tensor& view() const { return tensor_; }
  /// The value of a bf16 element of two equal bytes.
  static float value(int byte) {
    const auto both = static_cast<std::uint32_t>(byte | byte << 8) << 16;  // bf16
    float f;
    std::memcpy(&f, &both, 4);
    return f;
  }

 private:
  static std::int64_t bytes_of(DType dtype, const std::vector<std::int64_t>& shape) {
    std::int64_t bytes = size_of(dtype);
    for (std::int64_t size : shape) bytes *= size;
    return bytes;
  }
  Room room_;
  Tensor tensor_;
};

/// `count` elements of a result in device memory, from offset `first`.
inline std::vector<float> some_floats(const Tensor& out, std::int64_t first, std::int64_t count) {
  std::vector<float> host(static_cast<std::size_t>(count));
  check(cudaMemcpy(host.data(), static_cast<const float*>(out.data) + first,
                   static_cast<std::size_t>(count) * sizeof(float), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
  return host;
}

/// A sparse matrix with more than 2^31 stored elements, one block per row of blocks, times a few
/// columns, by each row of a family.
inline void expect_many_stored_elements(const std::string& family) {
  constexpr std::int64_t kBlock = 128, kBlocks = (std::int64_t{1} << 17) + 64, kColumns = 8;
  constexpr int kFew = 0x3C, kLast = 0x3D, kOther = 0x3F;
  const Uniform values(DType::bf16, {kBlocks, kBlock, kBlock}, kFew, 1, kLast);
  const Uniform other(DType::bf16, {kBlock, kColumns}, kOther);
  const Uniform out(DType::f32, {kBlocks * kBlock, kColumns}, 0xFF);
  std::vector<std::int32_t> lists(static_cast<std::size_t>(2 * kBlocks + 1));
  for (std::int64_t i = 0; i <= kBlocks; ++i)
    lists[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
  const Room room(static_cast<std::int64_t>(lists.size() * sizeof(lists[0])));
  auto* const offsets = static_cast<std::int32_t*>(room.buffer().data);
  check(cudaMemcpy(offsets, lists.data(), lists.size() * sizeof(lists[0]), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  BsrMatrix sparse;
  sparse.rows = kBlocks * kBlock;
  sparse.cols = kBlock;
  sparse.values = values.view();
  sparse.row_offsets = tensor(offsets, DType::i32, {kBlocks + 1});
  sparse.col_indices = tensor(offsets + kBlocks + 1, DType::i32, {kBlocks});
  sparse.row_offsets.device = sparse.col_indices.device = {DeviceKind::cuda, 0};
  MatmulProblem problem;
  problem.a = sparse;
  problem.b = other.view();
  problem.out = out.view();
  for (int row : rows_of(family)) {
    run_by(row, problem);
    const float each = kBlock * Uniform::value(kOther);
    for (float x : some_floats(problem.out, 0, kColumns))
      EXPECT_FLOAT_EQ(x, each * Uniform::value(kFew)) << name_of(row);
    const std::int64_t last = (kBlocks - 1) * kBlock * kColumns;
    for (float x : some_floats(problem.out, last - kColumns, kColumns))
      EXPECT_FLOAT_EQ(x, each * Uniform::value(kFew)) << name_of(row);
    for (float x : some_floats(problem.out, last, kBlock * kColumns))
      EXPECT_FLOAT_EQ(x, each * Uniform::value(kLast)) << name_of(row);
  }
}

/// A captured graph of a plan's prepare and run for one problem.
class Captured {
 public:
  template <class Problem>
  Captured(const Plan& made, const Problem& problem)
      : workspace_(made.workspace_bytes), schedule_(made.schedule_bytes) {
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    Execution execution;
    execution.workspace = workspace_.buffer();
    execution.schedule = schedule_.buffer();
    execution.stream = stream_;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "capture");
    if (made.schedule_bytes > 0) prepare(made, problem, execution);
    run(made, problem, execution);
    check(cudaStreamEndCapture(stream_, &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  ~Captured() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  void launch() const {
    check(cudaGraphLaunch(executable_, stream_), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  Room workspace_, schedule_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tessera::gpu_test
