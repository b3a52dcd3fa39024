#include "src/ffi/problems.hpp"

#include <array>
#include <optional>
#include <string>
#include <utility>

#include <tessera/error.hpp>

namespace tessera::python {
namespace {

/// [batch, heads, length, dim] read as [batch, length, heads, dim]; packed and paged alike.
void swap_heads(Tensor& tensor) {
  if (tensor && tensor.rank >= 3) tensor = swap_dims(tensor, tensor.rank - 3, tensor.rank - 2);
}

/// None and FlashAttention's -1 are no limit.
std::optional<std::int64_t> window_limit(Reader& args, const char* name) {
  const std::optional<std::int64_t> limit = args.optional_integer(name);
  return limit == -1 ? std::nullopt : limit;
}

/// What follows the tensors of both directions: how they are laid out and what is computed.
/// Returns whether they came as [batch, heads, length, dim].
bool read_options(Reader& args, AttentionProblem& problem) {
  const bool bhld = args.boolean("bhld");
  if (bhld) {
    for (Tensor* tensor : {&problem.q, &problem.k, &problem.v, &problem.out}) swap_heads(*tensor);
  }
  problem.scale = args.optional_number("scale");
  problem.softcap = static_cast<float>(args.number("softcap"));
  problem.causal = args.boolean("causal");
  problem.window_left = window_limit(args, "window_left");
  problem.window_right = window_limit(args, "window_right");
  problem.q_offsets = args.tensor("q_offsets", kIndices);
  problem.kv_offsets = args.tensor("kv_offsets", kIndices);
  problem.kv_begin = args.tensor("kv_begin", kIndices);
  problem.kv_end = args.tensor("kv_end", kIndices);
  problem.q_position = args.tensor("q_position", kIndices);
  problem.kv_position = args.tensor("kv_position", kIndices);
  problem.page_table = args.tensor("page_table", "int32");
  problem.max_q_length = args.integer("max_q_length");
  problem.max_kv_length = args.integer("max_kv_length");
  problem.sinks = args.tensor("sinks", kFloats);
  problem.mask = args.block_mask();
  return bhld;
}

/// The enumerator of that name, among the first `count`.
template <class Enum>
Enum parse(const char* where, const std::string& name, int count) {
  std::string known;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    if (name == to_string(value)) return value;
    known += (i ? ", " : "") + std::string(to_string(value));
  }
  throw Error(ErrorCode::invalid_argument,
              std::string(where) + ": expected one of " + known + ", got '" + name + "'");
}

constexpr int kActivations = static_cast<int>(Activation::silu) + 1;

}  // namespace

Call read_attention(Reader& args) {
  AttentionProblem problem;
  problem.q = args.tensor("q", kInputs);
  problem.k = args.tensor("k", kInputs);
  problem.v = args.tensor("v", kInputs);
  problem.out = args.tensor("out", kFloats);
  problem.lse = args.tensor("lse", "float32");
  read_options(args, problem);
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Call read_attention_backward(Reader& args) {
  AttentionBackwardProblem problem;
  problem.forward.q = args.tensor("q", kInputs);
  problem.forward.k = args.tensor("k", kInputs);
  problem.forward.v = args.tensor("v", kInputs);
  problem.forward.out = args.tensor("out", kFloats);
  problem.forward.lse = args.tensor("lse", "float32");
  problem.dout = args.tensor("dout", kFloats);
  problem.dlse = args.tensor("dlse", "float32");
  problem.dq = args.tensor("dq", kFloats);
  problem.dk = args.tensor("dk", kFloats);
  problem.dv = args.tensor("dv", kFloats);
  problem.dsinks = args.tensor("dsinks", "float32");
  if (read_options(args, problem.forward)) {
    for (Tensor* tensor : {&problem.dout, &problem.dq, &problem.dk, &problem.dv})
      swap_heads(*tensor);
  }
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Call read_merge_states(Reader& args) {
  MergeStatesProblem problem;
  problem.out = args.tensor("out", kFloats);
  problem.lse = args.tensor("lse", "float32");
  problem.sinks = args.tensor("sinks", kFloats);
  const bool bhld = args.boolean("bhld");
  const std::int64_t parts = args.integer("parts");
  for (std::int64_t i = 0; i < parts; ++i) problem.outs.push_back(args.tensor("outs", kFloats));
  for (std::int64_t i = 0; i < parts; ++i) problem.lses.push_back(args.tensor("lses", "float32"));
  if (bhld) {
    swap_heads(problem.out);
    for (Tensor& out : problem.outs) swap_heads(out);
  }
  const Execution execution = args.execution();
  args.finish();
  return {std::move(problem), execution};
}

Call read_matmul(Reader& args) {
  MatmulProblem problem;
  problem.a = args.operand("a", "a.");
  problem.b = args.operand("b", "b.");
  problem.out = args.tensor("out", kFloats);
  problem.epilogue.c = args.tensor("c", kFloats);
  problem.epilogue.bias = args.tensor("bias", kFloats);
  problem.group_offsets = args.tensor("group_offsets", kIndices);
  problem.epilogue.alpha = static_cast<float>(args.number("alpha"));
  problem.epilogue.beta = static_cast<float>(args.number("beta"));
  problem.epilogue.bias_axis = args.boolean("bias_rows") ? BiasAxis::row : BiasAxis::column;
  problem.epilogue.activation =
      parse<Activation>("matmul: activation", args.text("activation"), kActivations);
  problem.group_axis = args.boolean("group_inner") ? GroupAxis::inner : GroupAxis::rows;
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Call read_sddmm(Reader& args) {
  SddmmProblem problem;
  problem.a = args.operand("a", "a.");
  problem.b = args.operand("b", "b.");
  problem.out = args.bsr("out.", kFloats);
  problem.alpha = static_cast<float>(args.number("alpha"));
  problem.beta = static_cast<float>(args.number("beta"));
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Call read_spgemm(Reader& args) {
  SpgemmProblem problem;
  problem.a = args.operand("a", "a.");
  problem.b = args.operand("b", "b.");
  problem.alpha = static_cast<float>(args.number("alpha"));
  problem.beta = static_cast<float>(args.number("beta"));
  const Execution execution = args.execution();
  args.finish();
  return {problem, execution};
}

Pattern read_pattern(Reader& args) {
  const std::string kind = args.text("kind");
  const auto seed = [&] { return static_cast<std::uint64_t>(args.integer("seed")); };
  const auto sizes = [&](const char* name) {
    return std::array{args.integer(name), args.integer(name), args.integer(name)};
  };
  // These follow from their arguments how large they are.
  if (kind == "sliding_tile") {
    const auto volume = sizes("volume"), neighbourhood = sizes("neighbourhood");
    return patterns::sliding_tile(volume, neighbourhood, args.integer("blocks"));
  }
  if (kind == "mesh") {
    const auto nodes = sizes("nodes");
    const std::int64_t unknowns = args.integer("unknowns");
    return patterns::mesh(nodes, unknowns, args.integer("block"));
  }
  const std::int64_t rows = args.integer("rows"), cols = args.integer("cols");
  if (kind == "random") {
    const double density = args.number("density");
    return patterns::random(rows, cols, density, seed());
  }
  if (kind == "banded") return patterns::banded(rows, cols, args.integer("half_width"));
  if (kind == "bigbird") {
    const std::int64_t half_width = args.integer("half_width"), global = args.integer("globals");
    const std::int64_t random = args.integer("random");
    return patterns::bigbird(rows, cols, half_width, global, random, seed());
  }
  if (kind == "block_diagonal") {
    const std::int64_t groups = args.integer("groups");
    const double zipf = args.number("zipf");
    return patterns::block_diagonal(rows, cols, groups, zipf, seed());
  }
  if (kind == "butterfly") return patterns::butterfly(rows, cols, args.integer("levels"));
  if (kind == "power_law") {
    const double density = args.number("density"), exponent = args.number("exponent");
    return patterns::power_law(rows, cols, density, exponent, seed());
  }
  if (kind == "power_law_graph") {
    const double density = args.number("density"), exponent = args.number("exponent");
    return patterns::power_law_graph(rows, cols, density, exponent, seed());
  }
  if (kind == "n_of_m") {
    const std::int64_t n = args.integer("n"), m = args.integer("m");
    return patterns::n_of_m(rows, cols, n, m, seed());
  }
  if (kind == "vertical_slash") {
    const std::int64_t verticals = args.integer("verticals"), slashes = args.integer("slashes");
    const bool causal = args.boolean("causal");
    return patterns::vertical_slash(rows, cols, verticals, slashes, causal, seed());
  }
  if (kind == "heavy_hitters") {
    const std::int64_t k = args.integer("k");
    const bool causal = args.boolean("causal");
    return patterns::heavy_hitters(rows, cols, k, causal, seed());
  }
  throw Error(ErrorCode::invalid_argument, "pattern: kind: no generator is called '" + kind + "'");
}

}  // namespace tessera::python
