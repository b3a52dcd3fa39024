#include "src/kernels/cuda/cublaslt/launch.hpp"

#include <cstdlib>
#include <memory>
#include <string>

#include <tessera/error.hpp>

#include "src/kernels/cuda/common/check.hpp"

// Some packages of the toolkit lack the header: then nothing but a reason is built.
#if __has_include(<cublasLt.h>)
#include "src/kernels/cuda/cublaslt/library.hpp"
#define TESSERA_HAS_CUBLASLT 1
#endif

namespace tessera::cuda::cublaslt {

#if defined(TESSERA_HAS_CUBLASLT)
namespace {

/// The first call of a device or kernel may allocate and load code inside the library. A capture
/// allows that where the thread says so.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() {
    check(cudaThreadExchangeStreamCaptureMode(&mode_), "cudaThreadExchangeStreamCaptureMode");
  }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

std::shared_ptr<void> relax_capture() { return std::make_shared<RelaxedCapture>(); }

struct Loaded {
  Library library = load_library(std::getenv("TESSERA_CUBLASLT"));
  Engine engine{library.functions, relax_capture};
};

/// Lives as long as the process: the order in which libraries end is not ours.
Loaded& loaded() {
  static auto* const one = new Loaded;
  return *one;
}

}  // namespace

void launch(const planning::Call& call) {
  if (const char* what = missing())
    throw Error(ErrorCode::unsupported, std::string("run: ") + what);
  loaded().engine.run(call);
}

std::int64_t workspace(const planning::Call& call) {
  if (call.planned.buffers.workspace == 0 || missing()) return 0;
  const DeviceGuard guard(planning::device_of(call.shape).index);
  return loaded().engine.workspace(call);
}

const char* missing() {
  const Library& library = loaded().library;
  return library.found ? nullptr : library.missing.c_str();
}

const char* version() { return loaded().library.found ? loaded().library.version.c_str() : ""; }
#else
void launch(const planning::Call&) {
  throw Error(ErrorCode::unsupported, std::string("run: ") + missing());
}
std::int64_t workspace(const planning::Call&) { return 0; }
const char* missing() { return "this library was built without cublasLt.h of the CUDA toolkit"; }
const char* version() { return ""; }
#endif

}  // namespace tessera::cuda::cublaslt
