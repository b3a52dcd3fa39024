#include <algorithm>
#include <iostream>
#include <memory>
#include <tessera/device.hpp>
#include <tessera/plan.hpp>

#include "apps/tessera/command.hpp"
#include "apps/tessera/options.hpp"
#include "apps/tessera/shapes.hpp"

namespace tessera::tool {

namespace {

struct Options {
  std::string op, device = "here", backend, kernel;
  std::int64_t expand_bytes = 0;
  ShapeOptions shapes;
  OptionScopes scopes;
  bool json = false;
};

// Adds options to the help, under a heading with the operations that they apply to.
class ShapeParser {
 public:
  ShapeParser(CLI::App& parser, OptionScopes& scopes) : parser_(parser), scopes_(scopes) {}

  void uses(std::vector<std::string> ops) { ops_ = std::move(ops); }

  template <class T>
  void option(const char* name, T& value, const char* what, const CLI::Validator& check) {
    place(parser_.add_option(name, value, what)->check(check));
  }
  void flag(const char* name, bool& value, const char* what) {
    place(parser_.add_flag(name, value, what));
  }

 private:
  void place(CLI::Option* option) {
    const bool all = ops_ == op_names();
    scopes_.only(option, ops_)->group(all ? "All operations" : CLI::detail::join(ops_, ", "));
  }

  CLI::App& parser_;
  OptionScopes& scopes_;
  std::vector<std::string> ops_;
};

void add_product_options(ShapeParser& parser, ShapeOptions& s) {
  parser.uses({"matmul", "bsr_matmul", "sddmm", "spgemm"});
  parser.option("--m", s.m, "rows of the result [4096]", non_negative_integer());
  parser.option("--n", s.n, "columns of the result [4096]", non_negative_integer());
  parser.option("--k", s.k, "inner dimension [4096]", non_negative_integer());
  parser.flag("--transpose-a", s.transpose_a, "A is stored transposed");
  parser.flag("--transpose-b", s.transpose_b, "B is stored transposed");

  parser.uses({"bsr_matmul", "sddmm", "spgemm"});
  parser.option("--block", s.block, "rows of a block [64]", positive_integer());
  parser.option("--block-cols", s.block_cols, "columns of a block [--block]", positive_integer());
  parser.uses({"bsr_matmul"});
  parser.option("--sparse", s.sparse, "which operand is sparse: a, b, both [a]",
                one_of({"a", "b", "both"}));
}

void add_attention_options(ShapeParser& parser, ShapeOptions& s) {
  parser.uses({"attention", "attention_backward", "merge_states"});
  parser.option("--heads", s.heads, "query heads [16]", positive_integer());
  parser.option("--q-length", s.q_length, "queries [4096]", non_negative_integer());
  parser.option("--dim", s.dim, "head dimension [128]", positive_integer());

  parser.uses({"attention", "attention_backward"});
  parser.option("--kv-heads", s.kv_heads, "key and value heads [--heads]", positive_integer());
  parser.option("--kv-length", s.kv_length, "keys [--q-length]", positive_integer());
  parser.option("--dim-v", s.dim_v, "head dimension of values [--dim]", positive_integer());
  parser.flag(
      "--packed", s.packed,
      "packed sequences: --batch of them, with --q-length queries and --kv-length keys each");
  parser.flag("--causal", s.causal, "causal mask");
  parser.option("--window-left", s.window_left, "visible keys before the query [no limit]",
                non_negative_integer());
  parser.option("--window-right", s.window_right, "visible keys after the query [no limit]",
                non_negative_integer());
  parser.option("--softcap", s.softcap, "softcap of the scores [none]", non_negative_number());
  parser.flag("--sinks", s.sinks, "attention sinks: a logit per head");
  parser.option("--page", s.page, "paged keys and values: keys per page [not paged]",
                positive_integer());
  parser.option("--block-q", s.block_q, "block mask: queries per block [--block-kv, 64]",
                positive_integer());
  parser.option("--block-kv", s.block_kv, "block mask: keys per block [--block-q, 64]",
                positive_integer());
  parser.uses({"attention"});
  parser.flag("--lse", s.lse, "also write the log-sum-exp");
  parser.option("--kv-dtype", s.kv_dtype,
                "element type of keys and values: e4m3, with scales [--dtype]", one_of({"e4m3"}));
  parser.flag("--batch-invariant", s.batch_invariant,
              "the same bits for a sequence whatever else is in the batch");
  parser.uses({"attention_backward"});
  parser.flag("--any-order", s.any_order,
              "gradients need not have the same bits every time: dq may be added up in any order");
  parser.uses({"merge_states"});
  parser.option("--parts", s.parts, "partial results [2]", integer_between(1, 1024));
}

void add_shape_options(CLI::App& app, Options& options) {
  OptionScopes& scopes = options.scopes;
  ShapeOptions& s = options.shapes;
  const CLI::Validator floats = one_of({"f32", "f16", "bf16"});
  ShapeParser parser(app, scopes);
  parser.uses(op_names());
  parser.option("--dtype", s.dtype, "element type of the inputs: f32, f16, bf16, e4m3, e5m2 [bf16]",
                one_of({"f32", "f16", "bf16", "e4m3", "e5m2"}));
  std::vector<std::string> but_spgemm = op_names();
  std::erase(but_spgemm, "spgemm");
  parser.uses(but_spgemm);
  parser.option("--out-dtype", s.out_dtype, "element type of the result [--dtype; bf16 of FP8]",
                floats);
  parser.option("--batch", s.batch, "batch size [1]", non_negative_integer());
  parser.uses({"attention", "attention_backward", "bsr_matmul", "sddmm", "spgemm"});
  parser.option("--density", s.density, "share of blocks, 0 to 1 [0.1; attention: no block mask]",
                number_between(0, 1));
  add_product_options(parser, s);
  parser.uses({"bsr_matmul"});
  parser.option("--expand-bytes", options.expand_bytes,
                "bytes that dense copies of sparse operands may take [0: no copies]",
                non_negative_integer());
  add_attention_options(parser, s);
}

DeviceFacts facts_for(std::string name) {
  name = CLI::detail::to_lower(name);
  if (name != "here") return device_preset(name);
  const bool gpu = cuda_device_count() > 0;
  return device_facts({gpu ? DeviceKind::cuda : DeviceKind::cpu, 0});
}

int run_explain(const Options& options) {
  options.scopes.check("explain", options.op);
  const DeviceFacts facts = facts_for(options.device);
  Execution execution;
  if (!options.backend.empty()) execution.backend = parse_backend(options.backend);
  execution.kernel = options.kernel;
  execution.expand_bytes = options.expand_bytes;
  const AnyProblem problem = make_problem(options.op, options.shapes, facts.kind);
  const Explanation explanation = explain(problem, facts, execution);
  std::string text = options.json ? to_json(explanation) : to_text(explanation);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::cout << text << '\n';
  return explanation.supported ? kFine : kUnsupported;
}

}  // namespace

Command add_explain(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* parser =
      app.add_subcommand("explain", "Show which kernel would run a problem, and why");
  parser->add_option("OP", options->op, "one of: " + CLI::detail::join(op_names(), ", "))
      ->required()
      ->check(one_of(op_names()));
  parser->add_option("--device", options->device,
                     "here, or a preset: " + CLI::detail::join(device_presets(), ", ") + " [here]");
  parser->add_option("--backend", options->backend, "use this backend only: cpu, sm80, sm90");
  parser->add_option("--kernel", options->kernel, "use the kernel row of this name only");
  parser->add_flag("--json", options->json, "print JSON");
  add_shape_options(*parser, *options);
  set_footer(
      *parser,
      "  tessera explain attention --heads 32 --kv-heads 8 --q-length 8192 --causal --device "
      "h100\n"
      "  tessera explain attention --block-q 128 --block-kv 128 --density 0.125\n"
      "  tessera explain attention --batch 8 --q-length 1 --kv-length 8192 --page 64 --device "
      "h100\n"
      "  tessera explain bsr_matmul --m 8192 --n 1024 --k 8192 --block 32 --density 0.05\n"
      "No data and no GPU are needed. Exit code 3: no kernel supports the problem there.");
  return {parser, [options] { return run_explain(*options); }};
}

}  // namespace tessera::tool
