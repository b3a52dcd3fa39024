#include <cstring>

#include <tessera/convert.hpp>

#include "tests/fixtures/expect.hpp"

// An output that shares memory with an input or another output is refused by every operation,
// before anything is written. Views that share none, and the operations in place that the headers
// name, run.
namespace tessera {
namespace {

using generate::Case;
using generate::Layout;

/// `call` is refused with a message that holds `says`.
template <class Call>
void refused(const Call& call, const std::string& says) {
  try {
    call();
    ADD_FAILURE() << "not refused: " << says;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
  }
}

HostTensor filled(std::initializer_list<std::int64_t> shape, float step = 0.01f) {
  HostTensor tensor(DType::f32, shape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] = step * static_cast<float>(i % 101 - 50);
  return tensor;
}

bool equal(const Tensor& a, const Tensor& b) {
  return oracle::read(a).values == oracle::read(b).values;
}

TEST(Overlap, Attention) {
  const HostTensor q = filled({1, 16, 2, 8}), k = filled({1, 16, 2, 8}, 0.02f);
  const HostTensor v = filled({1, 16, 2, 8}, 0.03f), out = filled({1, 16, 2, 8});
  const AttentionProblem good{.q = q, .k = k, .v = v, .out = out};
  for (const Tensor& input : {q.view(), k.view(), v.view()}) {
    AttentionProblem p = good;
    p.out = input;
    refused([&] { attention(p); }, "attention: out: expected memory of its own");
  }
  AttentionProblem p = good;
  p.lse = tensor(out.data<float>() + 32, DType::f32, {1, 2, 16});
  refused([&] { attention(p); }, "attention: lse: expected memory of its own");
  p.lse = {};
  p.sinks = tensor(out.data<float>(), DType::f32, {2});
  refused([&] { attention(p); }, "shares memory with sinks");
  EXPECT_TRUE(equal(out, filled({1, 16, 2, 8})));  // nothing was written
}

TEST(Overlap, AttentionOverSlicesOfOnePackedTensor) {
  const HostTensor packed = filled({1, 16, 4, 2, 8}), out = filled({1, 16, 2, 8});
  const auto slice = [&](std::int64_t i) {
    return tensor(packed.data<float>() + 16 * i, DType::f32, {1, 16, 2, 8}, {1024, 64, 8, 1});
  };
  AttentionProblem p{.q = slice(0), .k = slice(1), .v = slice(2), .out = out};
  attention(p);
  p.out = slice(3);
  attention(p);
  EXPECT_TRUE(equal(p.out, out));
}

TEST(Overlap, Backward) {
  const auto c = [] {
    generate::AttentionOptions options;
    options.dtype = DType::f32;
    options.mask = options.packed_q = options.packed_kv = generate::Presence::never;
    options.layout = Layout::contiguous;
    for (std::uint64_t seed = 0;; ++seed) {
      auto drawn = generate::backward_case(seed, options);
      const AttentionBackwardProblem& p = drawn->problem;
      if (p.dq && p.dk && p.dv && p.dq.numel() > 64 && p.dv.numel() > 64) return drawn;
    }
  }();
  const AttentionBackwardProblem& good = c->problem;
  AttentionBackwardProblem p = good;
  p.dq = p.forward.q;
  refused([&] { attention_backward(p); }, "attention_backward: dq: expected memory of its own");
  p = good;
  p.dk.data = p.dv.data;
  refused([&] { attention_backward(p); }, "dv: expected memory of its own");
  p = good;
  p.dv = p.forward.v;
  refused([&] { attention_backward(p); }, "shares memory with forward.v");
  p = good;
  p.dq.data = p.dout.data;
  refused([&] { attention_backward(p); }, "shares memory with dout");
}

TEST(Overlap, Matmul) {
  const HostTensor a = filled({24, 24}), b = filled({24, 24}, 0.02f), out = filled({24, 24});
  refused([&] { matmul({.a = a.view(), .b = b.view(), .out = a}); }, "shares memory with a");
  refused([&] { matmul({.a = a.view(), .b = b.view(), .out = b}); }, "shares memory with b");
  MatmulProblem p{.a = a.view(), .b = b.view(), .out = out};
  p.epilogue.beta = 1.0f;
  p.epilogue.c = swap_dims(out, 0, 1);
  refused([&] { matmul(p); }, "shares memory with epilogue.c");
  p.epilogue.c = {};
  p.epilogue.bias = tensor(out.data<float>(), DType::f32, {24});
  refused([&] { matmul(p); }, "shares memory with epilogue.bias");
  EXPECT_TRUE(equal(out, filled({24, 24})));
}

TEST(Overlap, MatmulInPlaceOfC) {
  const HostTensor a = filled({24, 24}), b = filled({24, 24}, 0.02f), c = filled({24, 24});
  const HostTensor apart = filled({24, 24}), in_place = filled({24, 24});
  MatmulProblem p{.a = a.view(), .b = b.view(), .out = apart};
  p.epilogue.beta = 0.5f;
  p.epilogue.c = c;
  matmul(p);
  p.out = p.epilogue.c = in_place;
  matmul(p);
  EXPECT_TRUE(equal(apart, in_place));
}

TEST(Overlap, MergeStates) {
  HostTensor first = filled({2, 4, 2, 8}), second = filled({2, 4, 2, 8}, 0.02f);
  HostTensor lse = filled({2, 2, 4}), other = filled({2, 2, 4}, 0.03f);
  const HostTensor out = filled({2, 4, 2, 8}), out_lse = filled({2, 2, 4});
  MergeStatesProblem p{.outs = {first, second}, .lses = {lse, other}, .out = out, .lse = out_lse};
  merge_states(p);
  p.out = swap_dims(first, 0, 0);
  p.lse = other;
  merge_states(p);
  EXPECT_TRUE(equal(out, first));
  EXPECT_TRUE(equal(out_lse, other));
  p.lse = tensor(second.data<float>(), DType::f32, {2, 2, 4});
  refused([&] { merge_states(p); }, "merge_states: lse: expected memory of its own");
}

TEST(Overlap, Sddmm) {
  const HostTensor a = filled({8, 8}), b = filled({8, 8});
  HostTensor offsets(DType::i32, {3}), columns(DType::i32, {2});
  offsets.data<std::int32_t>()[1] = 1, offsets.data<std::int32_t>()[2] = 2;
  SddmmProblem p{.a = a.view(), .b = b.view()};
  p.out.rows = p.out.cols = 8;
  p.out.row_offsets = offsets, p.out.col_indices = columns;
  p.out.values = tensor(b.data<float>(), DType::f32, {2, 4, 4});
  refused([&] { sddmm(p); }, "sddmm: out.values: expected memory of its own");
}

TEST(Overlap, SpgemmListsAreAnOperandsOnlyWhereTheyAreRead) {
  const HostTensor values = filled({2, 4, 4}), result = filled({2, 4, 4});
  HostTensor offsets(DType::i32, {3}), columns(DType::i32, {2});
  offsets.data<std::int32_t>()[1] = 1, offsets.data<std::int32_t>()[2] = 2;
  columns.data<std::int32_t>()[1] = 1;
  BsrMatrix a;
  a.rows = a.cols = 8;
  a.values = values, a.row_offsets = offsets, a.col_indices = columns;
  const SpgemmProblem p{.a = a, .b = a};
  BsrMatrix out = a;
  out.values = result;
  EXPECT_NO_THROW(spgemm_numeric(p, out));
  const SpgemmPlan plan = spgemm_symbolic(p);
  refused([&] { spgemm_numeric(plan, p, out); },
          "spgemm: out.row_offsets: expected memory of its own");
  out.values = values;
  refused([&] { spgemm_numeric(p, out); }, "spgemm: out.values: expected memory of its own");
}

TEST(Overlap, Conversions) {
  const HostTensor memory = filled({8, 8});
  HostTensor offsets(DType::i32, {3}), columns(DType::i32, {2}), counts(DType::i32, {1, 1, 2});
  offsets.data<std::int32_t>()[1] = 1, offsets.data<std::int32_t>()[2] = 2;
  BsrMatrix matrix;
  matrix.rows = matrix.cols = 8;
  matrix.row_offsets = offsets, matrix.col_indices = columns;
  matrix.values = tensor(memory.data<float>(), DType::f32, {2, 4, 4});
  refused([&] { to_dense(matrix, memory); }, "to_dense: dense: expected memory of its own");
  refused([&] { gather_blocks(memory, matrix); }, "gather_blocks: out.values: expected memory");
  refused(
      [&] {
        block_norms(memory, {}, tensor(memory.data<float>(), DType::f32, {2, 2}));
      },
      "block_norms: norms: expected memory of its own");
  refused(
      [&] {
        transpose_lists(matrix, {offsets, columns, columns});
      },
      "transpose_lists: out.positions: expected memory of its own");
  HostTensor blocks(DType::u8, {1, 1, 2, 16});
  BlockList list;
  list.counts = counts;
  list.indices = tensor(blocks.data<std::uint8_t>(), DType::i32, {1, 1, 2, 4});
  refused([&] { list_blocks(blocks, list); },
          "list_blocks: out.indices: expected memory of its own");
}

}  // namespace
}  // namespace tessera
