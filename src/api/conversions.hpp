#pragma once

#include <cstdint>

#include <tessera/execution.hpp>
#include <tessera/tensor.hpp>

#include "src/core/check_lists.hpp"
#include "src/core/overlap.hpp"
#include "src/kernels/cuda/prepare/convert.hpp"

// Helpers of the conversions: where they run, and checks of the lists that they write.
namespace tessera::api {

#if defined(TESSERA_CUDA)
inline constexpr bool kHasGpus = true;
#else
inline constexpr bool kHasGpus = false;
#endif

inline bool on_cpu(const Tensor& tensor) { return tensor.device.kind == DeviceKind::cpu; }

/// The GPU and stream on which a conversion runs. Throws if the build has no GPU backend.
cuda::Place place_of(const char* call, const Device& device, const Execution& execution);

/// Threads of a loop over rows in host memory; short ones are not worth several.
int threads_for_rows(const core::Where& call, const Execution& execution, std::int64_t rows);

/// Copies blocks to a dense matrix, on the device that both are on.
void to_dense(const char* call, const planning::BlockCopy& copy, const Device& device,
              const Execution& execution);

/// Checks a list that a call writes; `largest` is the largest number that it may have to hold.
void check_written_list(const core::Where& where, const Tensor& t, const Device& device,
                        core::Dims dims, std::int64_t largest);

}  // namespace tessera::api
