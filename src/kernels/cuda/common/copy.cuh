#pragma once

#include <cstdint>

// Copies from global to shared memory with cp.async, 16 bytes per thread.
namespace tessera::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* at) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(at));
}

/// Starts the copy of the first `bytes` of 16 bytes; zeros take the place of the others, which are
/// not read.
__device__ __forceinline__ void copy_bytes(std::uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(bytes)
               : "memory");
}
/// Starts the copy of 16 bytes.
__device__ __forceinline__ void copy_whole_chunk(std::uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
/// Starts the copy of 16 bytes. If not `keeps`, nothing is read, and zeros are written.
__device__ __forceinline__ void copy_chunk(std::uint32_t to, const void* from, bool keeps) {
  copy_bytes(to, from, keeps ? 16 : 0);
}
/// The same in fewer instructions than copy_chunk, whose number of bytes is a register.
__device__ __forceinline__ void copy_or_clear(std::uint32_t to, const void* from, bool keeps) {
  asm volatile(
      "{\n"
      ".reg .pred ignores;\n"
      "setp.eq.u32 ignores, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignores;\n"
      "}\n" ::"r"(to),
      "l"(from), "r"(static_cast<unsigned>(keeps))
      : "memory");
}

/// The same of four bytes.
__device__ __forceinline__ void copy_word(std::uint32_t to, const void* from, bool keeps) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(keeps ? 4 : 0)
               : "memory");
}

/// Ends a group of this thread's copies, which may be empty.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until all but the last kPending groups of this thread's copies have arrived.
template <int kPending>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Waits until this thread's copies have arrived; a barrier then shows them to other threads.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace tessera::cuda
