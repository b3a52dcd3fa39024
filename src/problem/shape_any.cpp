#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "src/core/check.hpp"
#include "src/problem/shape.hpp"

namespace tessera::planning {

using namespace core;  // the checks

namespace {

template <std::size_t... I>
AnyShape shape_at(const AnyProblem& problem, std::index_sequence<I...>) {
  static_assert(sizeof...(I) == std::variant_size_v<AnyShape>);
  AnyShape shape;
  const auto take = [&]<std::size_t At>(std::integral_constant<std::size_t, At>) {
    if (problem.index() == At) shape.emplace<At>(shape_of(std::get<At>(problem)));
  };
  (take(std::integral_constant<std::size_t, I>{}), ...);
  return shape;
}

template <Op op, class Problem>
constexpr bool kHolds =
    std::is_same_v<std::variant_alternative_t<static_cast<std::size_t>(op), AnyProblem>, Problem>;
static_assert(kHolds<Op::matmul, MatmulProblem> && kHolds<Op::sddmm, SddmmProblem> &&
                  kHolds<Op::spgemm, SpgemmProblem> && kHolds<Op::attention, AttentionProblem> &&
                  kHolds<Op::attention_backward, AttentionBackwardProblem> &&
                  kHolds<Op::merge_states, MergeStatesProblem>,
              "the alternatives of AnyProblem come in the order of Op");

}  // namespace

MergeShape shape_of(const MergeStatesProblem& problem) {
  const Where op("merge_states");
  if (problem.outs.empty()) refuse(op / "outs", "at least one partial result", "none");
  if (problem.lses.size() != problem.outs.size()) {
    refuse(op / "lses", words(problem.outs.size(), ", one for each of outs"),
           words(problem.lses.size()));
  }
  const Tensor& first = problem.outs.front();
  MergeShape shape;
  shape.parts = static_cast<std::int64_t>(problem.outs.size());
  shape.device = first.device;
  check_tensor((op / "outs")[0], first, shape.device);
  if (first.rank != 3 && first.rank != 4) {
    refuse((op / "outs")[0], "shape [batch, length, heads, dim] or [total, heads, dim]",
           to_string(first));
  }
  const bool packed = first.rank == 3;
  shape.dtype = first.dtype;
  shape.batch = packed ? 1 : first.size(0);
  shape.length = first.size(first.rank - 3);
  shape.heads = first.size(first.rank - 2);
  shape.dim = first.size(first.rank - 1);

  const char* length = packed ? "total" : "length";
  const Dim out[] = {
      {"batch", shape.batch}, {length, shape.length}, {"heads", shape.heads}, {"dim", shape.dim}};
  const Dim lse[] = {{"batch", shape.batch}, {"heads", shape.heads}, {length, shape.length}};
  const Dims out_dims = Dims(out).subspan(packed ? 1 : 0);
  const Dims lse_dims = Dims(lse).subspan(packed ? 1 : 0);
  const auto check_lse = [&](const Where& where, const Tensor& tensor) {
    check_tensor(where, tensor, shape.device);
    check_dtype(where, tensor, dtypes({DType::f32}));
    check_shape(where, tensor, lse_dims);
  };
  for (std::size_t i = 0; i < problem.outs.size(); ++i) {
    const auto part = static_cast<std::int64_t>(i);
    check_floats((op / "outs")[part], problem.outs[i], shape.device, out_dims);
    check_same_dtype((op / "outs")[part], problem.outs[i], shape.dtype, "outs[0]");
    check_lse((op / "lses")[part], problem.lses[i]);
  }
  check_output(op / "out", problem.out, shape.device, out_dims);
  shape.out = problem.out.dtype;
  if (problem.lse) {
    check_lse(op / "lse", problem.lse);
    check_no_alias(op / "lse", problem.lse);
  }
  shape.has_sinks = static_cast<bool>(problem.sinks);
  if (problem.sinks) {
    const Dim sinks[] = {{"heads", shape.heads}};
    check_floats(op / "sinks", problem.sinks, shape.device, sinks);
  }
  return shape;
}

AnyShape shape_of(const AnyProblem& problem) {
  return shape_at(problem, std::make_index_sequence<std::variant_size_v<AnyProblem>>{});
}

Op op_of(const AnyProblem& problem) { return static_cast<Op>(problem.index()); }
Op op_of(const AnyShape& shape) { return static_cast<Op>(shape.index()); }

namespace {

/// Mixes the fields that differ most often into a hash; == compares all of them.
std::uint64_t mixed(std::initializer_list<std::int64_t> numbers) {
  std::uint64_t hash = 0;
  for (const std::int64_t number : numbers)
    hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 32;
}

std::int64_t flags(const OperandShape& o) {
  return static_cast<int>(o.dtype) | o.sparse << 8 | o.transposed << 9 | o.tma_readable << 10 |
         static_cast<int>(o.scale) << 11;
}

std::uint64_t hash(const MatmulShape& s) {
  return mixed({s.m, s.n, s.k, s.batch, flags(s.a), flags(s.b), s.a.stored, s.b.stored,
                static_cast<int>(s.out) | static_cast<int>(s.blas) << 8});
}
std::uint64_t hash(const SddmmShape& s) {
  return mixed({s.m, s.n, s.k, s.batch, flags(s.a), flags(s.b), s.out.stored});
}
std::uint64_t hash(const SpgemmShape& s) {
  return mixed({s.m, s.n, s.k, flags(s.a), flags(s.b), s.a.stored, s.b.stored});
}
std::uint64_t hash(const AttentionShape& s) {
  return mixed(
      {s.batch, s.heads, s.kv_heads, s.q_length, s.kv_length, s.q_total, s.kv_total, s.dim,
       s.window_left, s.window_right, s.mask_capacity, s.mask_block.rows,
       static_cast<int>(s.dtype) | s.has_lse << 8 | s.masked << 9 | s.batch_invariant << 10});
}
std::uint64_t hash(const MergeShape& s) {
  return mixed({s.parts, s.batch, s.length, s.heads, s.dim, static_cast<int>(s.dtype)});
}

}  // namespace

std::uint64_t hash_of(const AnyShape& shape) {
  return std::visit([](const auto& s) { return hash(s); }, shape) + shape.index();
}

Device device_of(const AnyShape& shape) {
  return std::visit([](const auto& s) { return s.device; }, shape);
}

}  // namespace tessera::planning
