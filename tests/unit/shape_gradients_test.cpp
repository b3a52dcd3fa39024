#include "tests/unit/shape_problems.hpp"

namespace tessera::planning {
namespace {

using tessera::testing::expect_cases;
using B = AttentionBackwardProblem;
using BackwardCase = tessera::testing::ProblemCase<B>;
using M = MergeStatesProblem;
using MergeCase = tessera::testing::ProblemCase<M>;

TEST(AttentionShape, backward) {
  const auto make = [] {
    B b{.forward = dense_attention(), .dout = bf16({2, 100, 8, 32})};
    b.forward.lse = f32({2, 8, 100});
    b.dq = f32({2, 100, 8, 64});
    b.dk = bf16({2, 200, 2, 64});
    b.dv = bf16({2, 200, 2, 32});
    return b;
  };
  expect_cases(
      make,
      std::vector<BackwardCase>{
          {"as it is", [](B&) {}},
          {"dv alone", [](B& b) { b.dq = b.dk = {}; }},
          {"forward's arguments",
           [](B& b) { b.forward.softcap = -1; },
           {"attention_backward: forward.softcap: expected"}},
          {"no lse",
           [](B& b) { b.forward.lse = {}; },
           {"attention_backward: forward.lse: expected a tensor, got none"}},
          {"no out",
           [](B& b) { b.forward.out = {}; },
           {"attention_backward: forward.out: expected a tensor, got none"}},
          {"out is read only", [](B& b) { b.forward.out.strides[0] = 0; }},
          {"pages",
           [](B& b) {
             b.forward = paged_attention(), b.forward.lse = f32({2, 8, 100});
           },
           {"attention_backward: forward.page_table: expected none in a backward pass: gather the "
            "pages",
            "got i32[2, 20]"}},
          {"no dout",
           [](B& b) { b.dout = {}; },
           {"attention_backward: dout: expected a tensor, got none"}},
          {"dout's shape",
           [](B& b) {
             b.dout = bf16({2, 100, 8, 64});
           },
           {"attention_backward: dout: expected shape", "dim_v = 32", "got bf16[2, 100, 8, 64]"}},
          {"dout's dtype",
           [](B& b) { b.dout.dtype = DType::f32; },
           {"attention_backward: dout: expected dtype bf16 as forward.out has, got f32"}},
          {"dout broadcast", [](B& b) { b.dout.strides[0] = 0; }},
          {"dq's shape",
           [](B& b) {
             b.dq = f32({2, 100, 8, 32});
           },
           {"attention_backward: dq: expected shape", "dim = 64], the shape of q",
            "got f32[2, 100, 8, 32]"}},
          {"dk's shape",
           [](B& b) {
             b.dk = bf16({2, 200, 8, 64});
           },
           {"attention_backward: dk: expected shape", "the shape of k", "got bf16[2, 200, 8, 64]"}},
          {"dk on another device",
           [](B& b) { b.dk.device.kind = DeviceKind::cuda; },
           {"attention_backward: dk: expected all tensors on cpu, got", "on cuda:0"}},
          {"dv's dtype",
           [](B& b) { b.dv.dtype = DType::e4m3; },
           {"attention_backward: dv: expected dtype f32, f16 or bf16, got e4m3"}},
          {"dv aliases",
           [](B& b) { b.dv.strides[2] = 0; },
           {"attention_backward: dv: expected strides"}},
          {"dlse",
           [](B& b) {
             b.dlse = f32({2, 8, 100});
           }},
          {"dlse's dtype",
           [](B& b) {
             b.dlse = bf16({2, 8, 100});
           },
           {"attention_backward: dlse: expected dtype f32, got bf16"}},
          {"dsinks", [](B& b) { b.forward.sinks = bf16({8}), b.dsinks = f32({8}); }},
          {"dsinks without sinks",
           [](B& b) { b.dsinks = f32({8}); },
           {"attention_backward: dsinks: expected none, as forward.sinks is absent, got f32[8]"}},
          {"dsinks' shape",
           [](B& b) { b.forward.sinks = bf16({8}), b.dsinks = f32({1}); },
           {"attention_backward: dsinks: expected shape [heads = 8], got f32[1]"}},
          {"dsinks on another device",
           [](B& b) {
             b.forward.sinks = bf16({8}), b.dsinks = f32({8});
             b.dsinks.device.kind = DeviceKind::cuda;
           },
           {"attention_backward: dsinks: expected all tensors on cpu"}},
          {"dsinks alias",
           [](B& b) {
             b.forward.sinks = bf16({8}), b.dsinks = f32({8});
             b.dsinks.strides[0] = 0;
           },
           {"attention_backward: dsinks: expected strides"}},
          {"dsinks' dtype",
           [](B& b) { b.forward.sinks = bf16({8}), b.dsinks = bf16({8}); },
           {"attention_backward: dsinks: expected dtype f32, got bf16[8]"}},
          {"packed",
           [](B& b) {
             b.forward = packed_attention();
             b.forward.lse = f32({8, 100});
             b.dout = bf16({100, 8, 32});
             b.dq = bf16({100, 8, 64});
             b.dk = b.dv = {};
           }},
      },
      kCheckShape);
}

TEST(MergeShape, tensors) {
  const auto make = [] {
    const Tensor out = bf16({2, 10, 8, 64}), lse = f32({2, 8, 10});
    return M{.outs = {out, out, out}, .lses = {lse, lse, lse}, .out = out, .lse = lse};
  };
  const MergeShape shape = shape_of(make());
  EXPECT_EQ(shape.parts, 3);
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.length, 10);
  EXPECT_EQ(shape.heads, 8);
  EXPECT_EQ(shape.dim, 64);
  expect_cases(
      make,
      std::vector<MergeCase>{
          {"without lse", [](M& m) { m.lse = {}; }},
          {"one part", [](M& m) { m.outs.resize(1), m.lses.resize(1); }},
          {"packed",
           [](M& m) {
             m = {.outs = {bf16({10, 8, 64})}, .lses = {f32({8, 10})}, .out = f32({10, 8, 64})};
           }},
          {"no parts",
           [](M& m) { m.outs.clear(), m.lses.clear(); },
           {"merge_states: outs: expected at least one partial result, got none"}},
          {"an lse too few",
           [](M& m) { m.lses.pop_back(); },
           {"merge_states: lses: expected 3, one for each of outs, got 2"}},
          {"rank",
           [](M& m) {
             m.outs[0] = bf16({8, 64});
           },
           {"merge_states: outs[0]: expected shape [batch, length, heads, dim]", "bf16[8, 64]"}},
          {"shapes differ",
           [](M& m) {
             m.outs[2] = bf16({2, 11, 8, 64});
           },
           {"merge_states: outs[2]: expected shape [batch = 2, length = 10, heads = 8, dim = 64]",
            "got bf16[2, 11, 8, 64]"}},
          {"dtypes differ",
           [](M& m) { m.outs[1].dtype = DType::f16; },
           {"merge_states: outs[1]: expected dtype bf16 as outs[0] has, got f16"}},
          {"dtype",
           [](M& m) { m.outs[0].dtype = DType::e4m3; },
           {"merge_states: outs[0]: expected dtype f32, f16 or bf16, got e4m3"}},
          {"devices differ",
           [](M& m) { m.outs[1].device.kind = DeviceKind::cuda; },
           {"merge_states: outs[1]: expected all tensors on cpu", "cuda:0"}},
          {"an absent part",
           [](M& m) { m.outs[0] = {}; },
           {"merge_states: outs[0]: expected a tensor, got none"}},
          {"an absent lse",
           [](M& m) { m.lses[2] = {}; },
           {"merge_states: lses[2]: expected a tensor, got none"}},
          {"an lse on another device",
           [](M& m) { m.lses[2].device.kind = DeviceKind::cuda; },
           {"merge_states: lses[2]: expected all tensors on cpu", "cuda:0"}},
          {"an lse's shape",
           [](M& m) {
             m.lses[1] = f32({2, 10, 8});
           },
           {"merge_states: lses[1]: expected shape [batch = 2, heads = 8, length = 10]",
            "got f32[2, 10, 8]"}},
          {"an lse's dtype",
           [](M& m) { m.lses[1].dtype = DType::f16; },
           {"merge_states: lses[1]: expected dtype f32, got f16"}},
          {"out",
           [](M& m) {
             m.out = bf16({2, 10, 8, 63});
           },
           {"merge_states: out: expected shape", "dim = 64", "got bf16[2, 10, 8, 63]"}},
          {"out aliases",
           [](M& m) { m.out.strides[3] = 0; },
           {"merge_states: out: expected strides"}},
          {"lse",
           [](M& m) {
             m.lse = f32({2, 8, 9});
           },
           {"merge_states: lse: expected shape", "got f32[2, 8, 9]"}},
          {"lse aliases",
           [](M& m) { m.lse.strides[0] = 0; },
           {"merge_states: lse: expected strides"}},
          {"sinks", [](M& m) { m.sinks = f32({8}); }},
          {"sinks' shape",
           [](M& m) { m.sinks = f32({7}); },
           {"merge_states: sinks: expected shape [heads = 8], got f32[7]"}},
          {"empty",
           [](M& m) {
             m = {.outs = {bf16({0, 8, 64})}, .lses = {f32({8, 0})}, .out = f32({0, 8, 64})};
           }},
      },
      kCheckShape);
}

}  // namespace
}  // namespace tessera::planning
