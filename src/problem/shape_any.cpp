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

}  // namespace tessera::planning
