#pragma once

/// Includes the whole public interface. The headers depend on the standard library only.
#include <tessera/attention.hpp>
#include <tessera/block_mask.hpp>
#include <tessera/bsr.hpp>
#include <tessera/cache.hpp>
#include <tessera/convert.hpp>
#include <tessera/device.hpp>
#include <tessera/error.hpp>
#include <tessera/execution.hpp>
#include <tessera/host_tensor.hpp>
#include <tessera/matmul.hpp>
#include <tessera/pattern.hpp>
#include <tessera/plan.hpp>
#include <tessera/quantize.hpp>
#include <tessera/spgemm.hpp>
#include <tessera/tensor.hpp>
#include <tessera/version.hpp>
