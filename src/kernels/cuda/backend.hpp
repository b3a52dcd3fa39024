#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <tessera/device.hpp>
#include <tessera/plan.hpp>

#include "src/kernels/family.hpp"
#include "src/problem/shape.hpp"

// Interface of the GPU backends to the layers above. No CUDA type appears here.
namespace tessera::cuda {

namespace spgemm {
struct PlannedBlock;
}

/// Number of GPUs that the driver reports; 0 without a driver.
int device_count();

/// Throws `Error` if the device does not exist.
DeviceFacts device_facts(int index);

/// Stream-ordered memory from the device's pool.
void* allocate(std::int64_t bytes, int device, void* stream);
void release(void* memory, int device, void* stream) noexcept;

/// A number that no other stream of the device ever has. Empty while the stream is captured, or the
/// driver cannot say.
std::optional<std::uint64_t> uncaptured_stream(int device, void* stream);

/// Writes the plan's schedule, in stream order. Allocates nothing and never synchronises, so it may
/// be captured in a graph.
void prepare(const planning::Call& call);

/// The backends whose kernels this build has: TESSERA_CUDA_ARCHITECTURES may leave out sm90.
bool has_backend(Backend backend);

/// Fills in what a family's rows of this build provide: launch, missing and workspace. Nothing for
/// families of a backend that this build does not have.
void complete(planning::KernelFamily& family);

/// The version of cuBLASLt that products may run by; empty where none is found. Looks for it.
std::string cublaslt_version();

/// Launches the row's kernel on the problem's device. The caller's current device is unchanged
/// afterwards.
void launch(const planning::Call& call);

/// The pattern of the product of two block-sparse matrices: sorted lists, in memory that the
/// pattern owns, on the problem's device.
struct SpgemmPattern {
  std::int64_t rows = 0, cols = 0;  // of blocks
  std::int64_t stored = 0;          // blocks of the result
  std::int64_t products = 0;        // pairs of blocks that are multiplied
  std::shared_ptr<void> memory;
  std::int32_t* offsets = nullptr;         // [rows + 1]
  std::int32_t* columns = nullptr;         // [stored]
  spgemm::PlannedBlock* blocks = nullptr;  // [stored]; only for result blocks of 128 x 128
};

/// Synchronises with the stream once, to learn the size. The lists are complete in stream order.
SpgemmPattern spgemm_symbolic(const SpgemmProblem& problem, const planning::SpgemmShape& shape,
                              void* stream);

/// The result of spgemm, which is not part of its problem: Call::result points to one of these.
struct SpgemmResult {
  const BsrMatrix& out;
  const SpgemmPattern* pattern;  // to be copied into out's lists; null if out has its own
};

}  // namespace tessera::cuda
