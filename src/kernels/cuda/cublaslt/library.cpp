#if __has_include(<cublasLt.h>)

#include "src/kernels/cuda/cublaslt/library.hpp"

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
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? std::string() : file.substr(0, slash + 1);
}

/// Fills in the functions; what is wrong with the library, or nothing.
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

bool open(Library& library, const std::string& path, int flags) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
  if (!handle) return false;
  if (!take_functions(handle, library).empty()) return false;
  library.found = true;
  library.path = path;
  return true;
}

Library load_given(const std::string& path) {
  Library library;
  if (open(library, path, 0)) return library;
  library.missing = std::string(kVariable) + " names '" + path + "', which can't be used: ";
  if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    library.missing += take_functions(handle, library);
  } else {
    const char* error = dlerror();
    library.missing += error ? error : "dlopen failed";
  }
  return library;
}

}  // namespace

Library load_library(const char* given) {
  if (given && *given) return load_given(given);
  Library library;
  constexpr const char *kNew = "libcublasLt.so.13", *kOld = "libcublasLt.so.12";
  for (const char* name : {kNew, kOld})
    if (open(library, name, RTLD_NOLOAD)) return library;
  for (const char* name : {kNew, kOld})
    if (open(library, name, 0)) return library;
  // site-packages/tessera/lib/ beside site-packages/nvidia/.
  if (const std::string folder = own_folder(); !folder.empty()) {
    const std::string packages = folder + "../../nvidia/";
    if (open(library, packages + "cu13/lib/" + kNew, 0)) return library;
    if (open(library, packages + "cublas/lib/" + kOld, 0)) return library;
  }
  for (const char* name : {kNew, kOld})
    if (open(library, std::string("/usr/local/cuda/lib64/") + name, 0)) return library;
  library.missing =
      std::string("cuBLASLt was not found: import PyTorch first, or put the folder of ") + kNew +
      " or .12 on LD_LIBRARY_PATH, or set " + kVariable + " to the path of this file";
  return library;
}

}  // namespace tessera::cuda::cublaslt

#endif
