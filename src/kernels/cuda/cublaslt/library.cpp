#if __has_include(<cublasLt.h>)

#include "src/kernels/cuda/cublaslt/library.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <initializer_list>
#include <string>
#include <type_traits>

namespace tessera::cuda::cublaslt {
namespace {

constexpr const char* kVariable = "TESSERA_CUBLASLT";
constexpr std::size_t kOldest = 12;  // major version

/// The folder of the file that holds this code; empty where the loader does not say.
std::string own_folder() {
  Dl_info info{};
  if (!dladdr(reinterpret_cast<const void*>(&own_folder), &info) || !info.dli_fname) return {};
  const std::string file = info.dli_fname;
  if (file.front() != '/') return {};  // of a program that was started by a relative path
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

/// Fills in the functions. Returns what is wrong with the library, or nothing.
std::string take_functions(void* handle, Library& library) {
  std::string absent;
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (!function && absent.empty()) absent = std::string(name) + " is not in it";
  };
  Functions& f = library.functions;
  take(f.create, "cublasLtCreate");
  take(f.version, "cublasLtGetVersion");
  take(f.status_name, "cublasLtGetStatusName");
  take(f.layout_init, "cublasLtMatrixLayoutInit_internal");
  take(f.layout_set, "cublasLtMatrixLayoutSetAttribute");
  take(f.desc_init, "cublasLtMatmulDescInit_internal");
  take(f.desc_set, "cublasLtMatmulDescSetAttribute");
  take(f.preference_init, "cublasLtMatmulPreferenceInit_internal");
  take(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  take(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  take(f.matmul, "cublasLtMatmul");
  if (!absent.empty()) return absent;
  const std::size_t number = f.version();  // 130100
  library.version = std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) +
                    "." + std::to_string(number % 100);
  if (number / 10000 < kOldest)
    return "it is version " + library.version + ", expected 12 or later";
  return {};
}

/// Opens a library and takes its functions. Returns what is wrong with it, or nothing.
std::string open(Library& library, const std::string& path, int flags) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (!handle) {
    const char* error = dlerror();
    return error ? error : "dlopen failed";
  }
  if (std::string wrong = take_functions(handle, library); !wrong.empty()) {
    dlclose(handle);
    return wrong;
  }
  library.found = true;
  library.path = path;
  return {};
}

/// Whether the driver runs libraries of CUDA 13. Without a driver nothing runs, and either will do.
bool driver_runs_new() {
  int driver = 0;
  return cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0 || driver >= 13000;
}

}  // namespace

Library load_library(const char* given) {
  Library library;
  if (given && *given) {
    const std::string wrong = open(library, given, 0);
    if (!library.found)
      library.missing =
          std::string(kVariable) + " names '" + given + "', which can't be used: " + wrong;
    return library;
  }
  constexpr const char *kNew = "libcublasLt.so.13", *kOld = "libcublasLt.so.12";
  const auto opened = [&](const std::string& path, int flags = 0) {
    return open(library, path, flags).empty();
  };
  for (const char* name : {kNew, kOld})
    if (opened(name, RTLD_NOLOAD)) return library;
  const bool may_be_new = driver_runs_new();
  if ((may_be_new && opened(kNew)) || opened(kOld)) return library;
  // site-packages/tessera/lib/ beside site-packages/nvidia/.
  if (const std::string folder = own_folder(); !folder.empty()) {
    const std::string packages = folder + "../../nvidia/";
    if (may_be_new && opened(packages + "cu13/lib/" + kNew)) return library;
    if (opened(packages + "cublas/lib/" + kOld)) return library;
  }
  const std::string toolkit = "/usr/local/cuda/lib64/";
  if ((may_be_new && opened(toolkit + kNew)) || opened(toolkit + kOld)) return library;
  library.missing =
      std::string("cuBLASLt was not found: import PyTorch first, or put the folder of ") +
      (may_be_new ? std::string(kNew) + " or .12" : kOld) + " on LD_LIBRARY_PATH, or set " +
      kVariable + " to the path of this file";
  return library;
}

}  // namespace tessera::cuda::cublaslt

#endif
