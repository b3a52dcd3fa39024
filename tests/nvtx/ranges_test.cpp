// NVTX ranges around prepare and run, as a profiler sees them. The test needs no GPU: it plans for
// a device preset, and each step fails at its first driver call, inside its range.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <tessera/tessera.hpp>

namespace tessera {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// A tensor on the GPU that is never read, at an address of its own.
Tensor unread(DType dtype, std::initializer_list<std::int64_t> sizes) {
  static std::uintptr_t address = std::uintptr_t{1} << 32;
  return tensor(reinterpret_cast<void*>(address += std::uintptr_t{1} << 24), dtype, sizes, kGpu);
}

MergeStatesProblem merge_problem() {
  MergeStatesProblem problem;
  for (int i = 0; i < 2; ++i) {
    problem.outs.push_back(unread(DType::bf16, {1, 64, 2, 128}));
    problem.lses.push_back(unread(DType::f32, {1, 2, 64}));
  }
  problem.out = unread(DType::bf16, {1, 64, 2, 128});
  return problem;
}

/// A transposed sparse operand: its lists are prepared.
MatmulProblem product_problem() {
  MatmulProblem problem;
  BsrMatrix a;
  a.values = unread(DType::bf16, {6, 64, 64});
  a.row_offsets = unread(DType::i32, {5});
  a.col_indices = unread(DType::i32, {6});
  a.rows = a.cols = 256;
  problem.a = transpose(a);
  problem.b = unread(DType::bf16, {256, 128});
  problem.out = unread(DType::bf16, {256, 128});
  return problem;
}

std::vector<std::string> recorded() {
  std::ifstream file(std::getenv("NVTX_RECORD"));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

TEST(Ranges, NameStepOperationAndRowIfRequested) {
  std::remove(std::getenv("NVTX_RECORD"));
  const DeviceFacts h200 = device_preset("h200");
  const auto schedule = reinterpret_cast<void*>(std::uintptr_t{1} << 31);

  const MergeStatesProblem merge = merge_problem();
  const Plan merging = plan(merge, h200);
  EXPECT_THROW(run(merging, merge, {}), Error);

  const MatmulProblem product = product_problem();
  const Plan multiplying = plan(product, h200);
  ASSERT_GT(multiplying.schedule_bytes, 0);
  Execution execution;
  execution.schedule = {schedule, multiplying.schedule_bytes};
  EXPECT_THROW(prepare(multiplying, product, execution), Error);

  const std::vector<std::string> all = {"domain tessera",
                                        "push run merge_states " + merging.kernel_name, "pop ",
                                        "push prepare matmul " + multiplying.kernel_name, "pop "};
  const bool asked = std::string(std::getenv("TESSERA_NVTX")) == "1";
  EXPECT_EQ(recorded(), asked ? all : std::vector<std::string>{});
}

}  // namespace
}  // namespace tessera
