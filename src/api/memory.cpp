#include "src/api/memory.hpp"

#include <sys/mman.h>

#include <cstdlib>
#include <string>

#include <tessera/error.hpp>

#include "src/plan/workspace.hpp"

namespace tessera::api {

OwnedBuffer::OwnedBuffer(std::int64_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  // Large workspaces are touched once a call: huge pages save the page faults where the system has
  // them.
  constexpr std::int64_t kHugePage = std::int64_t{2} << 20;
  const std::int64_t alignment = bytes >= kHugePage ? kHugePage : planning::kBufferAlignment;
  const std::int64_t rounded = planning::align_up(bytes, alignment);
  storage_.reset(
      std::aligned_alloc(static_cast<std::size_t>(alignment), static_cast<std::size_t>(rounded)));
  if (!storage_) {
    throw Error(ErrorCode::out_of_memory,
                "execution: workspace: no memory for " + std::to_string(bytes) + " bytes");
  }
#if defined(MADV_HUGEPAGE)
  if (alignment == kHugePage)
    madvise(storage_.get(), static_cast<std::size_t>(rounded), MADV_HUGEPAGE);
#endif
}

void OwnedBuffer::Free::operator()(void* p) const { std::free(p); }

}  // namespace tessera::api
