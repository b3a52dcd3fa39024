// A library that takes the place of a profiler: NVTX loads it (NVTX_INJECTION64_PATH) and passes
// NVTX calls to it. It writes a line per call to the file NVTX_RECORD.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

std::FILE* record() {
  static std::FILE* const file = std::fopen(std::getenv("NVTX_RECORD"), "w");
  return file;
}

void note(const char* call, const char* text) {
  std::fprintf(record(), "%s %s\n", call, text);
  std::fflush(record());
}

nvtxDomainHandle_t NVTX_API create(const char* name) {
  note("domain", name);
  static int domain = 0;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* attributes) {
  note("push", attributes->message.ascii);
  return 0;
}

int NVTX_API pop(nvtxDomainHandle_t) {
  note("pop", "");
  return 0;
}

template <class Function>
NvtxFunctionPointer any(Function* function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int NVTX_API
InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
      size <= NVTX_CBID_CORE2_DomainCreateA)
    return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = any(create);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = any(push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = any(pop);
  return 1;
}
