#pragma once

#include <cstdint>

#include "tests/gpu/attention.hpp"
#include "tests/gpu/rows.hpp"

// What the tests of decode rows share.
namespace tessera::gpu_test::decode {

using generate::attention_case;
using generate::AttentionOptions;
using generate::Presence;
using gpu_test::OnGpu;
using gpu_test::Rows;
using gpu_test::rows_of;
using gpu_test::takes;

inline constexpr const char* kFamily = "sm90_decode";
inline constexpr std::int64_t kPages[] = {8, 16, 32, 64, 128, 256};

inline AttentionOptions decode_options(std::uint64_t seed) {
  AttentionOptions options = gpu_test::options_for(seed);
  options.mask = Presence::never;
  options.max_queries = 16;
  options.largest_batch = 3;
  options.page = kPages[seed % 6];
  return options;
}

}  // namespace tessera::gpu_test::decode
