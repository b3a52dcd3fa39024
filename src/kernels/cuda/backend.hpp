#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <tessera/device.hpp>
#include <tessera/plan.hpp>

#include "src/kernels/family.hpp"
#include "src/problem/shape.hpp"

// What the GPU backends offer to the layers above: no CUDA type crosses this line.
namespace tessera::cuda {

namespace spgemm {
struct PlannedBlock;
}

/// GPUs that the driver shows; 0 where there is no driver.
int device_count();

/// Throws `Error` where there is no such device.
DeviceFacts device_facts(int index);

/// Memory of the device's pool, in the order of a stream.
void* allocate(std::int64_t bytes, int device, void* stream);
void release(void* memory, int device, void* stream) noexcept;

/// Writes the plan's schedule in the order of the stream. Allocates nothing and waits for nothing,
/// so that it may be captured.
void prepare(const planning::Call& call);

/// What KernelFamily::missing is for a family of this build; null where nothing can be missing.
const char* (*missing_of(const planning::KernelFamily& family))();

/// The version of cuBLASLt that products may run by; empty where none is found. Looks for it.
std::string cublaslt_version();

/// Launches the row's kernel on the problem's device. The caller's current device is unchanged
/// afterwards.
void launch(const planning::Call& call);

/// Where the product of two block-sparse matrices has blocks: sorted lists in memory of its own on
/// the problem's device.
struct SpgemmPattern {
  std::int64_t rows = 0, cols = 0;  // of blocks
  std::int64_t stored = 0;          // blocks of the result
  std::int64_t products = 0;        // pairs of blocks that meet in them
  std::shared_ptr<void> memory;
  std::int32_t* offsets = nullptr;         // [rows + 1]
  std::int32_t* columns = nullptr;         // [stored]
  spgemm::PlannedBlock* blocks = nullptr;  // [stored], where blocks of the result are large
};

/// Waits once for the stream, to learn the size. The lists are complete in the stream's order.
SpgemmPattern spgemm_symbolic(const SpgemmProblem& problem, const planning::SpgemmShape& shape,
                              void* stream);

/// spgemm's result, which is no part of its problem: Call::result points to one of these.
struct SpgemmResult {
  const BsrMatrix& out;
  const SpgemmPattern* pattern;  // to be written into out's lists; null where out has its own
};

}  // namespace tessera::cuda
