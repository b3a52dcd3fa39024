#include "src/kernels/cuda/ranges.hpp"

#include <cstdlib>
#include <string>

// Toolkits without the NVTX headers: ranges do nothing.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define TESSERA_HAS_NVTX 1
#endif

namespace tessera::cuda {

#if defined(TESSERA_HAS_NVTX)
namespace {

bool wanted() {
  static const bool on = [] {
    const char* value = std::getenv("TESSERA_NVTX");
    return value && std::string(value) == "1";
  }();
  return on;
}

nvtxDomainHandle_t domain() {
  static nvtxDomainHandle_t made = nvtxDomainCreateA("tessera");
  return made;
}

}  // namespace

Range::Range(const char* step, const planning::Planned& planned) : open_(wanted()) {
  if (!open_) return;
  const std::string name =
      std::string(step) + ' ' + to_string(planned.family->op) + ' ' + planned.row->name;
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name.c_str();
  nvtxDomainRangePushEx(domain(), &attributes);
}

Range::~Range() {
  if (open_) nvtxDomainRangePop(domain());
}
#else
Range::Range(const char*, const planning::Planned&) {}
Range::~Range() = default;
#endif

}  // namespace tessera::cuda
