#include <cmath>

#include "src/core/check_lists.hpp"
#include "src/problem/scale_rules.hpp"
#include "src/problem/shape.hpp"
#include "src/problem/tma_rules.hpp"

namespace tessera::planning {

using namespace core;  // the checks

namespace {

// The pass that a problem is checked for: out and lse are outputs of forward, inputs of backward.
enum class Pass : std::uint8_t { forward, backward };

void refuse_beside(const Where& where, const Tensor& tensor, const char* why) {
  if (tensor) refuse(where, words("none ", why), to_string(tensor));
}

// The length of the longest sequence: `given`, or `bound` if the caller gives 0 (unknown).
std::int64_t longest(const Where& where, std::int64_t given, std::int64_t bound) {
  if (given < 0 || given > bound) {
    refuse(where, words("0 (unknown) to ", bound), words(given));
  }
  return given == 0 ? bound : given;
}

void check_queries(const Where& op, const AttentionProblem& problem, AttentionShape& shape) {
  const Tensor& q = problem.q;
  const Where at = op / "q";
  check_tensor(at, q, shape.device);
  check_dtype(at, q, kKeys);
  shape.dtype = q.dtype;
  shape.q_packed = static_cast<bool>(problem.q_offsets);
  const Dim dims[] = {{"batch"}, {shape.q_packed ? "total_q" : "q_length"}, {"heads"}, {"dim"}};
  check_shape(at, q, Dims(dims).subspan(shape.q_packed ? 1 : 0),
              shape.q_packed ? ", as q_offsets is given" : "; packed queries need q_offsets");
  shape.heads = q.size(q.rank - 2);
  shape.dim = q.size(q.rank - 1);
  if (!shape.q_packed) {
    shape.batch = q.size(0);
    shape.q_total = q.size(0) * q.size(1);
    longest(op / "max_q_length", problem.max_q_length, q.size(1));
    shape.q_length = q.size(1);
    return;
  }
  const Dim offsets[] = {{"batch + 1"}};
  check_list(op / "q_offsets", problem.q_offsets, shape.device, offsets);
  if (problem.q_offsets.size(0) == 0) {
    refuse(op / "q_offsets", "batch + 1 entries", to_string(problem.q_offsets));
  }
  shape.batch = problem.q_offsets.size(0) - 1;
  shape.q_total = q.size(0);
  shape.q_length = longest(op / "max_q_length", problem.max_q_length, shape.q_total);
}

/// Checks the factors of queries, keys or values `of` in e4m3: one for all or one for each head,
/// maybe for each outer index, and maybe for each 64 or 128 rows.
void check_scale(const Where& where, const Tensor& scale, const Tensor& of, const char* outer,
                 const char* heads, const AttentionShape& shape) {
  if (!scale) return;
  if (of.dtype != DType::e4m3)
    refuse(where, words("none, as the values are ", to_string(of.dtype), " and not e4m3"),
           to_string(scale));
  check_tensor(where, scale, shape.device);
  check_dtype(where, scale, dtypes({DType::f32}));
  const bool has_outer = of.rank == 4;
  const std::int64_t length = of.size(of.rank - 3);
  const bool by_rows = scale.rank == (has_outer ? 3 : 2);
  const bool per_outer = has_outer && scale.rank >= 2;
  const Dim dims[] = {
      {outer, of.size(0)},
      {heads, of.size(of.rank - 2), /*or_one=*/!per_outer && !by_rows},
      {"rows / 64", scale_rows(length, 64), false, "rows / 128", scale_rows(length, 128)}};
  check_shape(where, scale,
              Dims(dims).subspan(per_outer ? 0 : 1, (per_outer ? 2 : 1) + (by_rows ? 1 : 0)));
}

void check_keys(const Where& op, const AttentionProblem& problem, AttentionShape& shape,
                Pass pass) {
  const Tensor& k = problem.k;
  const Where k_at = op / "k", v_at = op / "v";
  const bool packed = static_cast<bool>(problem.kv_offsets);
  const bool paged = static_cast<bool>(problem.page_table);
  if (paged) refuse_beside(op / "kv_offsets", problem.kv_offsets, "with page_table");
  shape.kv_layout = paged ? KvLayout::paged : packed ? KvLayout::packed : KvLayout::dense;

  const Dim k_dims[] = {{paged ? "pages" : "batch", paged ? kAny : shape.batch},
                        {paged    ? "page"
                         : packed ? "total_kv"
                                  : "kv_length"},
                        {"kv_heads"},
                        {"dim", shape.dim}};
  check_tensor(k_at, k, shape.device);
  const bool narrow = pass == Pass::forward && k.dtype == DType::e4m3 && shape.dtype != k.dtype;
  if (!narrow) check_same_dtype(k_at, k, shape.dtype, "q");
  if (narrow) shape.narrow_kv = k.dtype;
  check_shape(k_at, k, Dims(k_dims).subspan(packed ? 1 : 0),
              packed ? ", as kv_offsets is given" : "; packed keys need kv_offsets");
  shape.kv_heads = k.size(k.rank - 2);
  if (shape.kv_heads == 0 ? shape.heads != 0 : shape.heads % shape.kv_heads != 0) {
    refuse(k_at, words("kv_heads that divide the ", shape.heads, " heads of q"), to_string(k));
  }

  const Tensor& v = problem.v;
  const std::int64_t outer = k.size(0), inner = k.size(1);
  const Dim v_dims[] = {{k_dims[0].name, outer},
                        {k_dims[1].name, packed ? outer : inner},
                        {"kv_heads", shape.kv_heads},
                        {"dim_v"}};
  check_tensor(v_at, v, shape.device);
  check_same_dtype(v_at, v, shape.kv_dtype(), narrow ? "k" : "q");
  check_shape(v_at, v, Dims(v_dims).subspan(packed ? 1 : 0), ", as k has");
  shape.dim_v = v.size(v.rank - 1);

  if (packed) {
    const Dim dims[] = {{"batch + 1", shape.batch + 1}};
    check_list(op / "kv_offsets", problem.kv_offsets, shape.device, dims);
    shape.kv_total = shape.kv_length = outer;
  } else {
    shape.kv_total = outer * inner;
    shape.kv_length = inner;
  }
  if (paged) {
    shape.pages = outer;
    shape.page = inner;
    if (shape.page == 0) refuse(k_at, "pages of at least one key", to_string(k));
    const Dim dims[] = {{"batch", shape.batch}, {"max_pages"}};
    check_list(op / "page_table", problem.page_table, shape.device, dims, dtypes({DType::i32}));
    shape.max_pages = problem.page_table.size(1);
    if (__builtin_mul_overflow(shape.max_pages, shape.page, &shape.kv_length) ||
        shape.kv_length > kMaxSize) {
      refuse(op / "page_table", "at most 2^60 keys in a row of pages",
             words(shape.max_pages, " pages of ", shape.page));
    }
    if (!problem.kv_end) refuse(op / "kv_end", "a list [batch], as page_table is given", "none");
  }
  const std::int64_t longest_kv =
      longest(op / "max_kv_length", problem.max_kv_length, shape.kv_length);
  if (packed) shape.kv_length = longest_kv;
  const char* outer_name = paged ? "pages" : "batch";
  check_scale(op / "k_scale", problem.k_scale, k, outer_name, "kv_heads", shape);
  check_scale(op / "v_scale", problem.v_scale, v, outer_name, "kv_heads", shape);
  shape.has_kv_scales = problem.k_scale || problem.v_scale;
  const int rank_by_rows = k.rank == 4 ? 3 : 2;
  shape.kv_scales_by_rows =
      problem.k_scale.rank == rank_by_rows || problem.v_scale.rank == rank_by_rows;
}

// Checks and stores the scale, softcap and windows.
void check_parameters(const Where& op, const AttentionProblem& problem, AttentionShape& shape) {
  if (problem.scale) {
    check_finite(op / "scale", *problem.scale);
    shape.scale = *problem.scale;
  } else {
    shape.scale =
        shape.dim == 0 ? 1.0f : static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.dim)));
  }
  if (!(problem.softcap >= 0.0f) || !std::isfinite(problem.softcap)) {
    refuse(op / "softcap", "0 (off) or a positive finite number", words(problem.softcap));
  }
  shape.softcap = problem.softcap;
  // A window that is wider than the distance of any two positions is no limit.
  const auto window = [&](const char* name, const std::optional<std::int64_t>& width) {
    if (width && *width < 0) refuse(op / name, "absent or 0 and more", words(*width));
    return width && *width <= 4 * kMaxSize ? *width : std::int64_t{-1};
  };
  shape.window_left = window("window_left", problem.window_left);
  shape.window_right = window("window_right", problem.window_right);
  if (problem.causal) shape.window_right = 0;
  shape.transforms_scores = shape.softcap > 0.0f || !(shape.scale > 0.0f);
}

void check_sequences(const Where& op, const AttentionProblem& problem, AttentionShape& shape) {
  const Dim dims[] = {{"batch", shape.batch}};
  const auto check = [&](const char* name, const Tensor& list) {
    if (list) check_list(op / name, list, shape.device, dims);
  };
  shape.has_kv_range = problem.kv_begin || problem.kv_end;
  check("kv_begin", problem.kv_begin);
  check("kv_end", problem.kv_end);
  check("q_position", problem.q_position);
  check("kv_position", problem.kv_position);
}

// A mask's rows and columns count within each sequence. If the total length were the bound, a mask
// made for the packed tensors as a whole would be accepted, and applied to each sequence.
void check_longest_is_known(const Where& where, const Tensor& offsets, std::int64_t given,
                            std::int64_t total) {
  if (offsets && offsets.size(0) > 2 && total > 0 && given == 0) {
    refuse(where, "the length of the longest sequence, as mask applies to each sequence by itself",
           "0 (unknown)");
  }
}

void check_mask(const Where& op, const AttentionProblem& problem, AttentionShape& shape) {
  const BlockMask& mask = problem.mask;
  const Where where = op / "mask";
  if (!has_lists(mask) && !mask.bit_tile && !mask.bits && mask.block_q == 0 && mask.block_kv == 0) {
    return;
  }
  check_longest_is_known(op / "max_q_length", problem.q_offsets, problem.max_q_length,
                         shape.q_total);
  check_longest_is_known(op / "max_kv_length", problem.kv_offsets, problem.max_kv_length,
                         shape.kv_total);
  const MaskLayout layout = check_mask_layout(
      where, mask,
      {.batch = shape.batch,
       .heads = shape.heads,
       .kv_heads = shape.kv_heads,
       .q_length = shape.q_length,
       .kv_length = shape.kv_length,
       .device = shape.device,
       .q_note = shape.q_packed ? " (max_q_length bounds the longest sequence)" : ""});
  shape.masked = true;
  shape.mask_block = {mask.block_q, mask.block_kv};
  shape.mask_rows = layout.rows;
  shape.mask_capacity = layout.capacity;
  shape.mask_batch = layout.batch;
  shape.mask_heads = layout.heads;
  shape.mask_bits = static_cast<bool>(mask.bit_tile);
}

void check_lse(const Where& where, const Tensor& lse, const AttentionShape& shape) {
  const Dim dims[] = {
      {"batch", shape.batch},
      {"heads", shape.heads},
      {shape.q_packed ? "total_q" : "q_length", shape.q_packed ? shape.q_total : shape.q_length}};
  check_tensor(where, lse, shape.device);
  check_dtype(where, lse, dtypes({DType::f32}));
  check_shape(where, lse, Dims(dims).subspan(shape.q_packed ? 1 : 0));
}

void check_out(const Where& where, const Tensor& out, const AttentionShape& shape) {
  const Dim dims[] = {
      {"batch", shape.batch},
      {shape.q_packed ? "total_q" : "q_length", shape.q_packed ? shape.q_total : shape.q_length},
      {"heads", shape.heads},
      {"dim_v", shape.dim_v}};
  check_floats(where, out, shape.device, Dims(dims).subspan(shape.q_packed ? 1 : 0));
}

// Whether TMA can read a tensor whose dimension `contiguous` is contiguous.
bool tma_readable(const Tensor& t, int contiguous) {
  return has_no_elements(t) || (lies_along(t, contiguous) && begins_aligned(t));
}
// The same of the last dimension, a head's row.
bool tma_readable(const Tensor& t) { return tma_readable(t, t.rank - 1); }

AttentionShape attention_shape(const Where& op, const AttentionProblem& problem, Pass pass) {
  AttentionShape shape;
  shape.device = problem.q.device;
  check_queries(op, problem, shape);
  check_keys(op, problem, shape, pass);
  check_scale(op / "q_scale", problem.q_scale, problem.q, "batch", "heads", shape);
  shape.has_q_scale = static_cast<bool>(problem.q_scale);
  check_parameters(op, problem, shape);
  check_sequences(op, problem, shape);
  check_mask(op, problem, shape);
  // The CPU backend reads any layout, so its plans do not depend on it.
  if (shape.device.kind != DeviceKind::cpu) {
    const Tensor& v = problem.v;
    const bool others = tma_readable(problem.q) && tma_readable(problem.k);
    shape.tma_readable = others && tma_readable(v);
    shape.v_by_keys =
        others && !shape.tma_readable && shape.dtype == DType::e4m3 && tma_readable(v, v.rank - 3);
  }

  check_out(op / "out", problem.out, shape);
  shape.out = problem.out.dtype;
  shape.has_lse = static_cast<bool>(problem.lse);
  if (problem.lse || pass == Pass::backward) check_lse(op / "lse", problem.lse, shape);
  if (pass == Pass::forward) {
    shape.batch_invariant = problem.batch_invariant;
    check_no_alias(op / "out", problem.out);
    if (problem.lse) check_no_alias(op / "lse", problem.lse);
  }
  shape.has_sinks = static_cast<bool>(problem.sinks);
  if (problem.sinks) {
    const Dim dims[] = {{"heads", shape.heads}};
    check_floats(op / "sinks", problem.sinks, shape.device, dims);
  }
  return shape;
}

// Checks a gradient: it has the shape of its tensor `of`, which is called `name`.
void check_gradient(const Where& where, const Tensor& gradient, const Tensor& of, const char* name,
                    const AttentionShape& shape) {
  if (!gradient) return;
  const std::string note = words(", the shape of ", name);
  std::array<Dim, kMaxRank> dims{};
  constexpr const char* kNames[] = {"batch", "length", "heads", "dim"};
  for (int i = 0; i < of.rank; ++i) {
    dims[static_cast<std::size_t>(i)] = {kNames[i + 4 - of.rank], of.size(i)};
  }
  check_tensor(where, gradient, shape.device);
  check_dtype(where, gradient, kFloats);
  check_shape(where, gradient, Dims(dims).first(static_cast<std::size_t>(of.rank)), note.c_str());
  check_no_alias(where, gradient);
}

}  // namespace

AttentionShape shape_of(const AttentionProblem& problem) {
  return attention_shape(Where("attention"), problem, Pass::forward);
}

AttentionBackwardShape shape_of(const AttentionBackwardProblem& problem) {
  const Where op("attention_backward");
  const AttentionProblem& forward = problem.forward;
  refuse_beside(op / "forward" / "page_table", forward.page_table,
                "in a backward pass: gather the pages into dense or packed keys first");
  AttentionBackwardShape shape{attention_shape(op / "forward", forward, Pass::backward)};

  check_out(op / "dout", problem.dout, shape);
  check_same_dtype(op / "dout", problem.dout, shape.out, "forward.out");
  shape.dout_readable = shape.device.kind == DeviceKind::cpu ||
                        (problem.dout.dtype == shape.dtype && tma_readable(problem.dout));
  shape.any_order = !problem.deterministic && shape.device.kind != DeviceKind::cpu;
  if (problem.dlse) check_lse(op / "dlse", problem.dlse, shape);
  check_gradient(op / "dq", problem.dq, forward.q, "q", shape);
  check_gradient(op / "dk", problem.dk, forward.k, "k", shape);
  check_gradient(op / "dv", problem.dv, forward.v, "v", shape);
  if (problem.dsinks) {
    if (!shape.has_sinks) {
      refuse(op / "dsinks", "none, as forward.sinks is absent", to_string(problem.dsinks));
    }
    const Dim dims[] = {{"heads", shape.heads}};
    check_tensor(op / "dsinks", problem.dsinks, shape.device);
    check_dtype(op / "dsinks", problem.dsinks, dtypes({DType::f32}));
    check_shape(op / "dsinks", problem.dsinks, dims);
    check_no_alias(op / "dsinks", problem.dsinks);
  }
  return shape;
}

}  // namespace tessera::planning
