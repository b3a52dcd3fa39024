#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <tessera/plan.hpp>
#include <vector>

namespace tessera::tool {

/// The options of `tessera explain`, from which it makes a problem without data.
struct ShapeOptions {
  std::string dtype = "bf16", out_dtype;
  std::int64_t batch = 1;

  // Products.
  std::int64_t m = 4096, n = 4096, k = 4096;
  std::int64_t block = 64, block_cols = 0;
  std::optional<double> density;
  std::string sparse = "a";
  bool transpose_a = false, transpose_b = false;

  // Attention.
  std::string kv_dtype;
  std::int64_t heads = 16, kv_heads = 0, q_length = 4096, kv_length = 0, dim = 128, dim_v = 0;
  bool causal = false, lse = false, sinks = false, packed = false, batch_invariant = false,
       any_order = false;
  std::optional<std::int64_t> window_left, window_right;
  double softcap = 0;
  std::int64_t block_q = 0, block_kv = 0, page = 0, parts = 2;
};

/// The operations that `make_problem` accepts, in the order of help texts.
const std::vector<std::string>& op_names();

/// Makes a problem with the options' shapes, without data, on that kind of device.
AnyProblem make_problem(const std::string& op, const ShapeOptions& options, DeviceKind device);

}  // namespace tessera::tool
