#include "src/api/conversions.hpp"

#include <limits>

#include <tessera/device.hpp>
#include <tessera/error.hpp>

#include "src/kernels/cpu/convert.hpp"

namespace tessera::api {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();

void check_contiguous(const core::Where& where, const Tensor& t) {
  if (t.numel() == 0) return;
  std::int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    if (t.size(i) > 1 && t.stride(i) != stride)
      core::refuse(where, "contiguous memory", to_string(t));
    stride *= t.size(i);
  }
}

}  // namespace

cuda::Place place_of(const char* call, const Device& device, const Execution& execution) {
  if (kHasGpus) return {device.index, execution.stream};
  throw Error(ErrorCode::unsupported, core::words(call, ": tensors on ", to_string(device),
                                                  ": this build has no GPU backend; configure with "
                                                  "TESSERA_CUDA=ON"));
}

int threads_for_rows(const core::Where& call, const Execution& execution, std::int64_t rows) {
  constexpr std::int64_t kFewRows = 256;
  if (execution.threads < 0)
    core::refuse(call / "execution" / "threads", "0 or more", core::words(execution.threads));
  if (rows < kFewRows) return 1;
  return execution.threads > 0 ? execution.threads : device_facts(Device{}).units;
}

void to_dense(const char* call, const planning::BlockCopy& copy, const Device& device,
              const Execution& execution) {
  if (device.kind == DeviceKind::cpu) return cpu::to_dense(copy);
  [[maybe_unused]] const cuda::Place place = place_of(call, device, execution);
  if constexpr (kHasGpus) cuda::to_dense(copy, place);
}

void check_written_list(const core::Where& where, const Tensor& t, const Device& device,
                        core::Dims dims, std::int64_t largest) {
  core::check_list(where, t, device, dims);
  core::check_pointer(where, t);
  check_contiguous(where, t);
  if (t.dtype == DType::i32 && largest > kMaxInt32)
    core::refuse(where, core::words("dtype i64 for numbers up to ", largest), to_string(t));
}

}  // namespace tessera::api
