#pragma once

#include <cstdint>

#include <tessera/execution.hpp>
#include <tessera/tensor.hpp>

#include "src/core/check_lists.hpp"
#include "src/core/overlap.hpp"
#include "src/kernels/cuda/prepare/convert.hpp"

// What all conversions share: where they run, and the lists that they write.
namespace tessera::api {

#if defined(TESSERA_CUDA)
inline constexpr bool kHasGpus = true;
#else
inline constexpr bool kHasGpus = false;
#endif

inline bool on_cpu(const Tensor& tensor) { return tensor.device.kind == DeviceKind::cpu; }

/// Where a conversion of a GPU's tensors runs; throws where the build has no GPU backend.
cuda::Place place_of(const char* call, const Device& device, const Execution& execution);

/// A list that is written; `largest` is the largest number that may have to go into it.
void check_written_list(const core::Where& where, const Tensor& t, const Device& device,
                        core::Dims dims, std::int64_t largest);

}  // namespace tessera::api
