#pragma once

#include <vector>

#include <tessera/device.hpp>
#include <tessera/plan.hpp>

#include "src/kernels/family.hpp"
#include "src/problem/shape.hpp"

// The CPU backend: runs every operation in f32, with the best instruction set of the machine.
namespace tessera::cpu {

/// The resources of a call: the kernel row, buffers of the planned sizes (owned by the caller),
/// threads.
struct Resources {
  const planning::KernelRow& row;
  void* workspace;
  void* schedule;
  int threads;
};

/// prepare and launch of the CPU families. A schedule begins with a mark; a schedule that was not
/// prepared for the same plan is refused.
void prepare(const planning::Call& call);
void launch(const planning::Call& call);
/// Write and check the mark at the beginning of a schedule. A matmul's mark may have the addresses
/// of values that `prepare` copied.
void mark_schedule(const planning::Planned& planned, void* schedule, const void* a = nullptr,
                   const void* b = nullptr);
void check_schedule(const planning::Planned& planned, const void* schedule, const void* a = nullptr,
                    const void* b = nullptr);

void run(const MatmulProblem&, const planning::MatmulShape&, const Resources&);
void run(const SddmmProblem&, const planning::SddmmShape&, const Resources&);
void run(const AttentionProblem&, const planning::AttentionShape&, const Resources&);
void run(const AttentionBackwardProblem&, const planning::AttentionBackwardShape&,
         const Resources&);
void run(const MergeStatesProblem&, const planning::MergeShape&, const Resources&);

void prepare(const MatmulProblem&, const planning::MatmulShape&, const planning::KernelRow& row,
             void* schedule);
void prepare(const AttentionProblem&, const planning::AttentionShape&,
             const planning::KernelRow& row, void* schedule);
void prepare(const AttentionBackwardProblem&, const planning::AttentionShape&,
             const planning::KernelRow& row, void* schedule);

/// The blocks of a result and, for each, the pairs of stored blocks whose products it sums.
struct SpgemmPattern {
  std::vector<std::int64_t> offsets, columns;           // of the result, by row, sorted
  std::vector<std::int64_t> pair_offsets;               // [stored + 1]
  std::vector<std::int64_t> left_blocks, right_blocks;  // stored positions
};
SpgemmPattern spgemm_symbolic(const SpgemmProblem&, const planning::SpgemmShape&);
/// The pairs for the blocks that `out` already lists.
SpgemmPattern spgemm_sampled(const SpgemmProblem&, const planning::SpgemmShape&,
                             const BsrMatrix& out);
void spgemm_numeric(const SpgemmProblem&, const planning::SpgemmShape&, const SpgemmPattern&,
                    const BsrMatrix& out, const Resources&);

DeviceFacts device_facts();

}  // namespace tessera::cpu
