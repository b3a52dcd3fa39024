#include <tessera/quantize.hpp>

#include <algorithm>
#include <string>

#include "src/api/conversions.hpp"
#include "src/kernels/cpu/quantize.hpp"
#include "src/kernels/cuda/prepare/quantize.hpp"
#include "src/problem/scale_rules.hpp"

namespace tessera {
namespace {

using core::refuse;
using core::Where;
using core::words;
using planning::Four;
using planning::QuantizeShape;

/// A number for each dimension of t, by its number in t; `missing` for those before.
template <class Number>
Four four_of(const Tensor& t, std::int64_t missing, const Number& number) {
  const auto at = [&](int dim) { return dim < 0 ? missing : number(dim); };
  const int first = t.rank - 4;
  return {at(first), at(first + 1), at(first + 2), at(first + 3)};
}
Four sizes_of(const Tensor& t) {
  return four_of(t, 1, [&](int dim) { return t.size(dim); });
}
Four strides_of(const Tensor& t) {
  return four_of(t, 0, [&](int dim) { return t.stride(dim); });
}

/// Factors per matrix, or finer, of x [.., rows, cols].
void set_matrix_factors(const Where& where, const Tensor& x, const Tensor& scale,
                        QuantizeShape& s) {
  const std::int64_t rows = s.size.c, cols = s.size.d;
  const auto box =
      planning::scale_box(rows, cols, scale.size(scale.rank - 2), scale.size(scale.rank - 1));
  const bool leads = std::equal(x.shape.begin(), x.shape.begin() + x.rank - 2, scale.shape.begin());
  if (!box || !leads) {
    std::string lead;
    for (int dim = 0; dim < x.rank - 2; ++dim) lead += words(x.size(dim), ", ");
    refuse(where, words("[1] or ", planning::scale_shapes(rows, cols, lead)), to_string(scale));
  }
  s.box = {1, 1, box->rows, box->cols};
  s.count = sizes_of(scale);
  s.scale_stride = strides_of(scale);
}

/// Factors per head of x [.., length, heads, dim], for each outer index or for all, and maybe for
/// rows of 64 or 128.
void set_head_factors(const Where& where, const Tensor& x, const Tensor& scale, QuantizeShape& s) {
  const bool by_rows = scale.rank == x.rank - 1 && (x.rank == 3 || scale.rank == 3);
  const bool by_outer = x.rank == 4 && scale.rank >= 2;
  const std::int64_t length = s.size.b, heads = s.size.c;
  const int head_dim = by_outer ? 1 : 0;
  const std::int64_t of_64 = planning::scale_rows(length, 64);
  const std::int64_t of_128 = planning::scale_rows(length, 128);
  std::int64_t rows = std::max<std::int64_t>(length, 1);
  bool fits = scale.rank == 1 + by_outer + by_rows && scale.size(head_dim) == heads &&
              (!by_outer || scale.size(0) == s.size.a);
  if (fits && by_rows) {
    const std::int64_t got = scale.size(head_dim + 1);
    fits = got == of_64 || got == of_128;
    rows = std::min(rows, planning::rows_per_scale(length, got));
  }
  if (!fits) {
    const std::string outer = x.rank == 4 ? words(s.size.a, ", ") : "";
    refuse(where,
           words("[1], [", heads, "] (heads)", x.rank == 4 ? words(", [", outer, heads, "]") : "",
                 ", [", outer, heads, ", ", of_64, " or ", of_128,
                 "] (64 or 128 rows of a head), or factors of matrices, of x's rank"),
           to_string(scale));
  }
  s.box = {by_outer ? 1 : std::max<std::int64_t>(s.size.a, 1), rows, 1,
           std::max<std::int64_t>(s.size.d, 1)};
  s.count = {by_outer ? s.size.a : 1, by_rows ? scale.size(head_dim + 1) : 1, heads, 1};
  s.scale_stride = {by_outer ? scale.stride(0) : 0, by_rows ? scale.stride(head_dim + 1) : 0,
                    scale.stride(head_dim), 0};
}

QuantizeShape quantize_shape(const Where& call, const Tensor& x, const Tensor& out,
                             const Tensor& scale) {
  core::check_tensor(call / "x", x, x.device);
  core::check_dtype(call / "x", x, core::kFloats);
  if (x.rank < 2 || x.rank > 4) refuse(call / "x", "rank 2 to 4", to_string(x));
  core::check_tensor(call / "out", out, x.device);
  core::check_dtype(call / "out", out, core::kFp8);
  if (out.rank != x.rank ||
      !std::equal(x.shape.begin(), x.shape.begin() + x.rank, out.shape.begin()))
    refuse(call / "out", words("the shape of x, ", to_string(x)), to_string(out));
  core::check_no_alias(call / "out", out);
  const Where where = call / "scale";
  core::check_tensor(where, scale, x.device);
  core::check_dtype(where, scale, core::dtypes({DType::f32}));
  QuantizeShape s;
  s.x = x.data, s.out = out.data, s.scale = static_cast<float*>(scale.data);
  s.x_dtype = x.dtype, s.out_dtype = out.dtype;
  s.size = sizes_of(x), s.x_stride = strides_of(x), s.out_stride = strides_of(out);
  if (scale.rank == 1 && scale.size(0) == 1) {
    const auto all = [](std::int64_t size) { return std::max<std::int64_t>(size, 1); };
    s.box = {all(s.size.a), all(s.size.b), all(s.size.c), all(s.size.d)};
    s.count = {1, 1, 1, 1};
  } else if (x.rank == 2 || scale.rank == x.rank) {
    if (scale.rank != x.rank)
      refuse(where, words("[1] or ", planning::scale_shapes(s.size.c, s.size.d)), to_string(scale));
    set_matrix_factors(where, x, scale, s);
  } else {
    set_head_factors(where, x, scale, s);
  }
  return s;
}

}  // namespace

void quantize(const Tensor& x, const Tensor& out, const Tensor& scale, Scales scales,
              const Execution& execution) {
  const Where call("quantize");
  const QuantizeShape shape = quantize_shape(call, x, out, scale);
  const bool computed = scales == Scales::computed;
  core::check_pointers(call, {{"x", x}, {"out", out}, {"scale", scale}});
  core::Outputs outputs;
  outputs.add(call / "out", out);
  if (computed) {
    core::check_no_alias(call / "scale", scale);
    outputs.add(call / "scale", scale);
  } else {
    outputs.check_input(call / "scale", scale);
  }
  outputs.check_input(call / "x", x);
  if (api::on_cpu(x))
    return cpu::quantize(shape, computed, api::threads_for_rows(call, execution, shape.rows()));
  [[maybe_unused]] const cuda::Place place = api::place_of("quantize", x.device, execution);
  if constexpr (api::kHasGpus) cuda::quantize(shape, computed, place);
}

}  // namespace tessera
