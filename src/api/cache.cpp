#include <tessera/cache.hpp>

#include "src/api/conversions.hpp"
#include "src/kernels/cpu/cache.hpp"
#include "src/kernels/cuda/prepare/cache.hpp"
#include "src/walk/views.hpp"

namespace tessera {
namespace {

using core::Dim;
using core::Dims;
using core::Where;
using core::words;

constexpr unsigned kF32 = core::dtypes({DType::f32});

/// Checks factors for tensors [.., heads, dim]: [1], [heads], or [outer, heads] where there is an
/// outer index.
void check_scale(const Where& where, const Tensor& scale, const Device& device, Dim outer,
                 Dim heads, bool has_outer) {
  core::check_tensor(where, scale, device);
  core::check_dtype(where, scale, kF32);
  const bool per_outer = scale.rank == 2 && has_outer;
  heads.or_one = !per_outer;
  const Dim dims[] = {outer, heads};
  core::check_shape(where, scale, Dims(dims).subspan(per_outer ? 0 : 1));
}

/// Checks new keys or values, `new_name`, and their part of the cache, and returns the two.
planning::AppendRows append_rows(const Where& call, const char* new_name, const Tensor& rows,
                                 const char* cache_name, const Tensor& cache,
                                 const char* scale_name, const Tensor& scale, Dims row_dims,
                                 Dims cache_dims, const Device& device) {
  core::check_floats(call / new_name, rows, device, row_dims);
  core::check_tensor(call / cache_name, cache, device);
  core::check_dtype(call / cache_name, cache, core::kKeys);
  core::check_shape(call / cache_name, cache, cache_dims);
  core::check_no_alias(call / cache_name, cache);
  if (scale && cache.dtype != DType::e4m3)
    core::refuse(call / scale_name, words("none, as ", cache_name, " is not e4m3"),
                 to_string(scale));
  if (scale)
    check_scale(call / scale_name, scale, device, {"pages", cache.size(0)},
                {"kv_heads", cache.size(2)}, true);
  return {planning::head_rows(rows), planning::head_rows(cache), planning::head_scale(scale),
          rows.size(rows.rank - 1)};
}

void check_append_memory(const Where& call, const PagedAppend& p) {
  core::check_pointers(call, {{"k", p.k},
                              {"v", p.v},
                              {"offsets", p.offsets},
                              {"k_cache", p.k_cache},
                              {"v_cache", p.v_cache},
                              {"page_table", p.page_table},
                              {"lengths", p.lengths},
                              {"k_scale", p.k_scale},
                              {"v_scale", p.v_scale}});
  core::Outputs outputs;
  outputs.add(call / "k_cache", p.k_cache);
  outputs.add(call / "v_cache", p.v_cache);
  outputs.check_inputs(call, {{"k", p.k},
                              {"v", p.v},
                              {"offsets", p.offsets},
                              {"page_table", p.page_table},
                              {"lengths", p.lengths},
                              {"k_scale", p.k_scale},
                              {"v_scale", p.v_scale}});
}

planning::AppendShape append_shape(const Where& call, const PagedAppend& p) {
  const Device device = p.k.device;
  const bool packed = static_cast<bool>(p.offsets);
  core::check_tensor(call / "k", p.k, device);
  core::check_tensor(call / "k_cache", p.k_cache, device);
  const Dim k_dims[] = {{"batch"}, {packed ? "total" : "length"}, {"kv_heads"}, {"dim"}};
  core::check_shape(call / "k", p.k, Dims(k_dims).subspan(packed ? 1 : 0),
                    packed ? ", as offsets is given" : "; packed keys need offsets");
  planning::AppendShape s;
  const std::int64_t tokens = p.k.size(packed ? 0 : 1), heads = p.k.size(p.k.rank - 2);
  if (packed) {
    const Dim dims[] = {{"batch + 1"}};
    core::check_list(call / "offsets", p.offsets, device, dims);
    if (p.offsets.size(0) == 0)
      core::refuse(call / "offsets", "batch + 1 entries", to_string(p.offsets));
  }
  s.batch = packed ? p.offsets.size(0) - 1 : p.k.size(0);
  s.length = tokens;
  s.tokens = packed ? tokens : s.batch * tokens;
  s.heads = heads;
  const Dim rows[] = {
      {"batch", s.batch}, {packed ? "total" : "length", tokens}, {"kv_heads", heads}, {"dim_v"}};
  const Dims v_dims = Dims(rows).subspan(packed ? 1 : 0);
  const Dim k_cache[] = {{"pages"}, {"page"}, {"kv_heads", heads}, {"dim", p.k.size(p.k.rank - 1)}};
  s.k = append_rows(call, "k", p.k, "k_cache", p.k_cache, "k_scale", p.k_scale,
                    Dims(k_dims).subspan(packed ? 1 : 0), k_cache, device);
  core::check_floats(call / "v", p.v, device, v_dims);
  core::check_same_dtype(call / "v", p.v, p.k.dtype, "k");
  core::check_tensor(call / "v_cache", p.v_cache, device);
  core::check_same_dtype(call / "v_cache", p.v_cache, p.k_cache.dtype, "k_cache");
  const Dim v_cache[] = {{"pages", p.k_cache.size(0)},
                         {"page", p.k_cache.size(1)},
                         {"kv_heads", heads},
                         {"dim_v", p.v.size(p.v.rank - 1)}};
  s.v = append_rows(call, "v", p.v, "v_cache", p.v_cache, "v_scale", p.v_scale, v_dims, v_cache,
                    device);
  if (p.k_cache.size(1) == 0)
    core::refuse(call / "k_cache", "pages of at least one key", to_string(p.k_cache));
  const Dim table[] = {{"batch", s.batch}, {"max_pages"}};
  core::check_list(call / "page_table", p.page_table, device, table, core::dtypes({DType::i32}));
  const Dim batch[] = {{"batch", s.batch}};
  core::check_list(call / "lengths", p.lengths, device, batch);
  if (packed) s.offsets = planning::indices_of(p.offsets);
  if (packed) s.offsets_stride = p.offsets.stride(0);
  s.lengths = planning::indices_of(p.lengths);
  s.lengths_stride = p.lengths.stride(0);
  s.pages = planning::page_view(p.page_table, p.k_cache);
  return s;
}

/// Checks lists in host memory: every new key has a place.
void check_places(const Where& call, const PagedAppend& p, const planning::AppendShape& s) {
  if (p.offsets) {
    core::OffsetsRule rule;
    rule.total = s.tokens;
    core::check_offsets(call / "offsets", p.offsets, 0, s.batch, rule);
  }
  const std::int64_t capacity = s.pages.max_pages * s.pages.page_size;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int64_t count =
        p.offsets ? core::read_entry(p.offsets, 0, b + 1) - core::read_entry(p.offsets, 0, b)
                  : s.length;
    const std::int64_t length = core::read_entry(p.lengths, 0, b);
    if (length < 0 || length > capacity - count)
      core::refuse(call / "lengths",
                   words("0 to ", capacity - count, ", so that the ", count,
                         " new keys fit into the page table"),
                   words(length, " for sequence ", b));
    for (std::int64_t key = length; key < length + count;) {
      const planning::PageView::Run run = s.pages.run(b, key, length + count);
      if (run.page < 0)
        core::refuse(call / "page_table", words("pages in [0, ", s.pages.pages, ")"),
                     words(core::read_entry(p.page_table, b * p.page_table.stride(0),
                                            key / s.pages.page_size),
                           " for page ", key / s.pages.page_size, " of sequence ", b));
      key += run.count;
    }
  }
}

}  // namespace

void append(const PagedAppend& problem, const Execution& execution) {
  const Where call("append");
  const planning::AppendShape shape = append_shape(call, problem);
  check_append_memory(call, problem);
  if (api::on_cpu(problem.k)) {
    check_places(call, problem, shape);
    return cpu::append(shape, api::threads_for_rows(call, execution, shape.tokens));
  }
  [[maybe_unused]] const cuda::Place place = api::place_of("append", problem.k.device, execution);
  if constexpr (api::kHasGpus) cuda::append(shape, place);
}

}  // namespace tessera
