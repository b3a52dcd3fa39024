#include <cstring>
#include <utility>

#include "tests/fixtures/expect.hpp"

// Outputs that share memory with another tensor of the call are refused, and no memory changes.
// Interleaved views that share no byte are supported.
namespace tessera {
namespace {

using generate::Case;
using generate::Layout;

std::string shares(const std::string& call, const std::string& output, const std::string& other) {
  return call + ": " + output + ": shares memory with " + other + "; give " + output +
         " memory of its own";
}

/// The error's message; empty if the call runs.
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

/// `spoil` makes an output share memory with another tensor.
template <class Make, class Spoil>
void refuses(Make make, Spoil spoil, const std::string& message) {
  const auto c = make();
  spoil(c->problem);
  expect::refuses(*c, message);
}

Tensor input(generate::Memory& memory, const std::vector<std::int64_t>& shape) {
  const Tensor tensor = memory.input(DType::f32, shape, Layout::contiguous);
  memory.fill_normal(tensor);
  return tensor;
}
Tensor output(generate::Memory& memory, const std::vector<std::int64_t>& shape) {
  return memory.output(DType::f32, shape, Layout::contiguous);
}

/// Moves the contents of a tensor into the memory of an output that is at least as large.
void move_into(const Tensor& output, Tensor& tensor) {
  ASSERT_LE(tensor.numel() * size_of(tensor.dtype), output.numel() * size_of(output.dtype));
  std::memcpy(output.data, tensor.data,
              static_cast<std::size_t>(tensor.numel() * size_of(tensor.dtype)));
  tensor.data = output.data;
}

// ---- Products ----------------------------------------------------------------------------------

std::unique_ptr<Case<MatmulProblem>> product() {
  auto c = std::make_unique<Case<MatmulProblem>>(1);
  c->problem.a = input(c->memory, {6, 6});
  c->problem.b = input(c->memory, {6, 6});
  c->problem.out = output(c->memory, {6, 6});
  c->problem.epilogue.bias = input(c->memory, {6});
  return c;
}

BsrMatrix sparse_input(generate::Memory& memory) {
  return {input(memory, {4, 2, 2}), memory.list(DType::i32, {4}, {0, 2, 2, 4}),
          memory.list(DType::i32, {4}, {0, 2, 1, 2}), 6, 6};
}

TEST(OverlappingOutputs, Matmul) {
  using P = MatmulProblem;
  refuses(
      product, [](P& p) { p.out = p.a.dense; }, shares("matmul", "out", "a"));
  refuses(
      product, [](P& p) { p.out = p.b.dense; }, shares("matmul", "out", "b"));
  refuses(
      product, [](P& p) { p.b.dense = swap_dims(p.out, 0, 1); }, shares("matmul", "out", "b"));
  refuses(
      product, [](P& p) { move_into(p.out, p.epilogue.bias); },
      shares("matmul", "out", "epilogue.bias"));
  refuses(
      product,
      [](P& p) {
        p.a.dense.dtype = p.b.dense.dtype = DType::e4m3;
        p.b.scale = tensor(p.out.data, DType::f32, {1});
      },
      shares("matmul", "out", "b.scale"));
  refuses(
      product,
      [](P& p) {
        p.epilogue.c = swap_dims(p.out, 0, 1);
        p.epilogue.beta = 1;
      },
      shares("matmul", "out", "epilogue.c"));
  const auto sparse = [] {
    auto c = product();
    c->problem.a = sparse_input(c->memory);
    return c;
  };
  refuses(
      sparse, [](P& p) { move_into(p.out, p.a.sparse.values); },
      shares("matmul", "out", "a.sparse.values"));
  refuses(
      sparse, [](P& p) { move_into(p.out, p.a.sparse.row_offsets); },
      shares("matmul", "out", "a.sparse.row_offsets"));
  refuses(
      sparse, [](P& p) { move_into(p.out, p.a.sparse.col_indices); },
      shares("matmul", "out", "a.sparse.col_indices"));
  const auto grouped = [] {
    auto c = product();
    c->problem.b = input(c->memory, {2, 6, 6});
    c->problem.group_offsets = c->memory.list(DType::i32, {3}, {0, 4, 6});
    return c;
  };
  refuses(
      grouped, [](P& p) { move_into(p.out, p.group_offsets); },
      shares("matmul", "out", "group_offsets"));
}

TEST(OverlappingOutputs, MatmulAllowsOutAsC) {
  auto c = product();
  c->memory.fill_normal(c->problem.out);
  c->former = oracle::read(c->problem.out);
  c->problem.epilogue.c = c->problem.out;
  c->problem.epilogue.beta = 0.5f;
  c->memory.arm();
  ASSERT_NO_THROW(matmul(c->problem));
  // Without c, the oracle reads the former contents.
  c->problem.epilogue.c = {};
  const oracle::Comparison result = oracle::check(c->problem, c->former_values());
  EXPECT_TRUE(result.ok) << result.message;
}

TEST(OverlappingOutputs, MatmulAllowsColumnsOfOneMatrix) {
  auto c = product();
  const Tensor whole = output(c->memory, {6, 12});
  const auto columns = [&](std::int64_t first) {
    Tensor part = whole;
    part.shape[1] = 6;
    part.data = static_cast<float*>(whole.data) + first;
    return part;
  };
  c->memory.fill_normal(whole);
  c->problem.a = columns(0);
  c->problem.out = columns(6);
  ASSERT_NO_THROW(matmul(c->problem));
  const oracle::Comparison result = oracle::check(c->problem);
  EXPECT_TRUE(result.ok) << result.message;
  c->problem.out = columns(5);
  EXPECT_EQ(refusal_of([&] { matmul(c->problem); }), shares("matmul", "out", "a"));
}

TEST(OverlappingOutputs, Sddmm) {
  using P = SddmmProblem;
  const auto make = [] {
    auto c = std::make_unique<Case<SddmmProblem>>(1);
    c->problem.a = input(c->memory, {6, 6});
    c->problem.b = input(c->memory, {6, 6});
    c->problem.out = sparse_input(c->memory);
    c->problem.out.values = output(c->memory, {4, 2, 2});
    return c;
  };
  EXPECT_NO_THROW(sddmm(make()->problem));
  refuses(
      make, [](P& p) { p.a.dense.data = p.out.values.data; }, shares("sddmm", "out.values", "a"));
  refuses(
      make, [](P& p) { p.b.dense.data = p.out.values.data; }, shares("sddmm", "out.values", "b"));
  refuses(
      make, [](P& p) { move_into(p.out.values, p.out.col_indices); },
      shares("sddmm", "out.values", "out.col_indices"));
}

TEST(OverlappingOutputs, Spgemm) {
  const HostBsr a = make_bsr(patterns::banded(3, 3, 1), 2, 2, DType::f32);
  const HostBsr b = make_bsr(patterns::banded(3, 3, 1), 2, 2, DType::f32);
  const SpgemmProblem problem{.a = a.view(), .b = b.view()};
  const SpgemmPlan plan = spgemm_symbolic(problem);
  const HostBsr made = make_bsr(patterns::banded(3, 3, 2), 2, 2, DType::f32);
  ASSERT_EQ(plan.stored_blocks(), made.view().stored_blocks());
  const auto planned = [&](const BsrMatrix& out) {
    return refusal_of([&] { spgemm_numeric(plan, problem, out); });
  };
  const auto given = [&](const BsrMatrix& out) {
    return refusal_of([&] { spgemm_numeric(problem, out); });
  };
  EXPECT_EQ(planned(made.view()), "");
  EXPECT_EQ(given(made.view()), "");
  BsrMatrix out = made.view();
  out.values.data = a.values.view().data;
  EXPECT_EQ(planned(out), shares("spgemm", "out.values", "a.sparse.values"));
  EXPECT_EQ(given(out), shares("spgemm", "out.values", "a.sparse.values"));
  out = made.view();
  out.row_offsets.data = b.row_offsets.view().data;
  EXPECT_EQ(planned(out), shares("spgemm", "out.row_offsets", "b.sparse.row_offsets"));
  out.row_offsets.data = made.col_indices.view().data;
  EXPECT_EQ(planned(out), shares("spgemm", "out.col_indices", "out.row_offsets"));
  // At a given pattern the lists are only read, so the result may share those of an operand.
  BsrMatrix sampled = a.view();
  const HostTensor values(DType::f32, {sampled.stored_blocks(), 2, 2});
  sampled.values = values;
  EXPECT_EQ(given(sampled), "");
}

// ---- Attention ---------------------------------------------------------------------------------

/// A problem with every kind of tensor that dense attention reads.
std::unique_ptr<Case<AttentionProblem>> small_attention() {
  auto c = std::make_unique<Case<AttentionProblem>>(1);
  generate::Memory& memory = c->memory;
  AttentionProblem& p = c->problem;
  for (Tensor* tensor : {&p.q, &p.k, &p.v}) *tensor = input(memory, {2, 8, 2, 4});
  p.out = output(memory, {2, 8, 2, 4});
  p.lse = output(memory, {2, 2, 8});
  p.sinks = input(memory, {2});
  p.kv_begin = memory.list(DType::i32, {2}, {0, 0});
  p.kv_end = memory.list(DType::i32, {2}, {8, 8});
  p.q_position = memory.list(DType::i32, {2}, {0, 0});
  p.kv_position = memory.list(DType::i32, {2}, {0, 0});
  p.mask.block_q = p.mask.block_kv = 8;
  p.mask.partial.offsets = memory.list(DType::i32, {1, 1, 2}, {0, 1});
  p.mask.partial.indices = memory.list(DType::i32, {1}, {0});
  p.mask.bit_tile = memory.list(DType::i32, {1}, {0});
  p.mask.bits = memory.list(DType::u8, {1, 8, 1}, std::vector<std::int64_t>(8, 255));
  p.mask.full.counts = memory.list(DType::i32, {1, 1, 1}, {0});
  p.mask.full.indices = memory.list(DType::i32, {1, 1, 1, 1}, {0});
  return c;
}

std::vector<std::pair<std::string, Tensor*>> inputs_by_name(AttentionProblem& p) {
  return {{"q", &p.q},
          {"k", &p.k},
          {"v", &p.v},
          {"sinks", &p.sinks},
          {"kv_begin", &p.kv_begin},
          {"kv_end", &p.kv_end},
          {"q_position", &p.q_position},
          {"kv_position", &p.kv_position},
          {"mask.partial.offsets", &p.mask.partial.offsets},
          {"mask.partial.indices", &p.mask.partial.indices},
          {"mask.bit_tile", &p.mask.bit_tile},
          {"mask.bits", &p.mask.bits},
          {"mask.full.counts", &p.mask.full.counts},
          {"mask.full.indices", &p.mask.full.indices}};
}

TEST(OverlappingOutputs, Attention) {
  const auto base = small_attention();
  EXPECT_NO_THROW(attention(base->problem));
  for (std::size_t i = 0; i < inputs_by_name(base->problem).size(); ++i) {
    const auto c = small_attention();
    const auto [name, tensor] = inputs_by_name(c->problem)[i];
    move_into(c->problem.out, *tensor);
    expect::refuses(*c, shares("attention", "out", name));
  }
  using P = AttentionProblem;
  refuses(
      small_attention, [](P& p) { move_into(p.lse, p.kv_end); },
      shares("attention", "lse", "kv_end"));
  refuses(
      small_attention, [](P& p) { p.lse.data = static_cast<float*>(p.k.data) + 5; },
      shares("attention", "lse", "k"));
  refuses(
      small_attention, [](P& p) { p.lse.data = static_cast<float*>(p.out.data) + 5; },
      shares("attention", "lse", "out"));
}

TEST(OverlappingOutputs, PackedAndPagedAttention) {
  const auto packed = [] {
    auto c = std::make_unique<Case<AttentionProblem>>(1);
    for (Tensor* tensor : {&c->problem.q, &c->problem.k, &c->problem.v})
      *tensor = input(c->memory, {7, 2, 4});
    c->problem.out = output(c->memory, {7, 2, 4});
    c->problem.q_offsets = c->memory.list(DType::i32, {3}, {0, 4, 7});
    c->problem.kv_offsets = c->memory.list(DType::i32, {3}, {0, 4, 7});
    return c;
  };
  const auto paged = [] {
    auto c = std::make_unique<Case<AttentionProblem>>(1);
    c->problem.q = input(c->memory, {2, 3, 2, 4});
    for (Tensor* tensor : {&c->problem.k, &c->problem.v}) *tensor = input(c->memory, {5, 4, 2, 4});
    c->problem.out = output(c->memory, {2, 3, 2, 4});
    c->problem.page_table = c->memory.list(DType::i32, {2, 3}, {0, 3, 1, 4, 2, 1});
    c->problem.kv_end = c->memory.list(DType::i32, {2}, {7, 12});
    return c;
  };
  using P = AttentionProblem;
  refuses(
      packed, [](P& p) { move_into(p.out, p.q_offsets); }, shares("attention", "out", "q_offsets"));
  refuses(
      packed, [](P& p) { move_into(p.out, p.kv_offsets); },
      shares("attention", "out", "kv_offsets"));
  refuses(
      paged, [](P& p) { move_into(p.out, p.page_table); },
      shares("attention", "out", "page_table"));
}

TEST(OverlappingOutputs, AttentionAllowsSlicesOfOneTensor) {
  auto c = small_attention();
  AttentionProblem& p = c->problem;
  const Tensor whole = output(c->memory, {2, 8, 4, 2, 4});
  c->memory.fill_normal(whole);
  int slice = 0;
  for (Tensor* tensor : {&p.q, &p.k, &p.v, &p.out}) {
    tensor->data = static_cast<float*>(whole.data) + slice++ * whole.stride(2);
    tensor->strides = {whole.stride(0), whole.stride(1), whole.stride(3), whole.stride(4)};
  }
  ASSERT_NO_THROW(attention(p));
  const oracle::Comparison result = oracle::check(p);
  EXPECT_TRUE(result.ok) << result.message;
  p.out.data = static_cast<float*>(p.out.data) - 1;
  EXPECT_EQ(refusal_of([&] { attention(p); }), shares("attention", "out", "v"));
}

TEST(OverlappingOutputs, AttentionBackward) {
  using P = AttentionBackwardProblem;
  const auto make = [] {
    auto c = std::make_unique<Case<P>>(1);
    generate::Memory& memory = c->memory;
    P& p = c->problem;
    for (Tensor* tensor : {&p.forward.q, &p.forward.k, &p.forward.v, &p.forward.out, &p.dout})
      *tensor = input(memory, {1, 8, 2, 4});
    p.forward.lse = input(memory, {1, 2, 8});
    p.dlse = input(memory, {1, 2, 8});
    p.forward.sinks = input(memory, {2});
    for (Tensor* tensor : {&p.dq, &p.dk, &p.dv}) *tensor = output(memory, {1, 8, 2, 4});
    p.dsinks = output(memory, {2});
    return c;
  };
  EXPECT_NO_THROW(attention_backward(make()->problem));
  const auto expect_refusal = [&](const auto& spoil, const char* out, const char* other) {
    refuses(make, spoil, shares("attention_backward", out, other));
  };
  expect_refusal([](P& p) { p.dq = p.forward.q; }, "dq", "forward.q");
  expect_refusal([](P& p) { p.dk = p.forward.k; }, "dk", "forward.k");
  expect_refusal([](P& p) { p.dv = p.forward.v; }, "dv", "forward.v");
  expect_refusal([](P& p) { p.dq = p.dout; }, "dq", "dout");
  expect_refusal([](P& p) { p.dv = p.forward.out; }, "dv", "forward.out");
  expect_refusal([](P& p) { p.dsinks.data = p.forward.sinks.data; }, "dsinks", "forward.sinks");
  expect_refusal([](P& p) { p.dsinks.data = p.forward.lse.data; }, "dsinks", "forward.lse");
  expect_refusal([](P& p) { p.dsinks.data = p.dlse.data; }, "dsinks", "dlse");
  expect_refusal([](P& p) { p.dk = p.dv; }, "dv", "dk");
}

std::unique_ptr<Case<MergeStatesProblem>> partial_results() {
  auto c = std::make_unique<Case<MergeStatesProblem>>(1);
  for (int i = 0; i < 2; ++i) {
    c->problem.outs.push_back(output(c->memory, {2, 3, 2, 4}));
    c->problem.lses.push_back(output(c->memory, {2, 2, 3}));
    c->memory.fill_normal(c->problem.outs.back());
    c->memory.fill_normal(c->problem.lses.back());
  }
  c->problem.out = output(c->memory, {2, 3, 2, 4});
  c->problem.lse = output(c->memory, {2, 2, 3});
  c->problem.sinks = input(c->memory, {2});
  return c;
}

TEST(OverlappingOutputs, MergeStates) {
  using P = MergeStatesProblem;
  const auto expect_refusal = [&](const auto& spoil, const char* out, const char* other) {
    refuses(partial_results, spoil, shares("merge_states", out, other));
  };
  const auto later = [](Tensor& t) { t.data = static_cast<float*>(t.data) + 1; };
  expect_refusal([](P& p) { move_into(p.out, p.sinks); }, "out", "sinks");
  expect_refusal([](P& p) { p.lse.data = p.outs[1].data; }, "lse", "outs[1]");
  expect_refusal([](P& p) { move_into(p.out, p.lses[1]); }, "out", "lses[1]");
  expect_refusal([](P& p) { p.lse.data = p.out.data; }, "lse", "out");
  expect_refusal(
      [&](P& p) {
        p.out = p.outs[1];
        later(p.out);
      },
      "out", "outs[1]");
  expect_refusal(
      [](P& p) {
        p.out = p.outs[0];
        p.out.data = static_cast<float*>(p.out.data) + p.out.stride(0);
        p.out.strides[0] = -p.out.stride(0);
      },
      "out", "outs[0]");
}

TEST(OverlappingOutputs, MergeStatesAllowsAPartAsOut) {
  const auto apart = partial_results(), in_place = partial_results();
  merge_states(apart->problem);
  MergeStatesProblem& p = in_place->problem;
  p.out = p.outs[1];
  p.lse = p.lses[0];
  ASSERT_NO_THROW(merge_states(p));
  EXPECT_EQ(oracle::read(p.out).values, oracle::read(apart->problem.out).values);
  EXPECT_EQ(oracle::read(p.lse).values, oracle::read(apart->problem.lse).values);
}

// ---- Buffers and conversions -------------------------------------------------------------------

TEST(OverlappingOutputs, WorkspaceAndSchedule) {
  const auto c = small_attention();
  const AttentionProblem& p = c->problem;
  const Plan made = plan(p);
  ASSERT_GT(made.workspace_bytes, 512);  // k and out lie inside
  ASSERT_GE(made.schedule_bytes, 128);   // and lse
  const expect::Scratch workspace(made.workspace_bytes), schedule(made.schedule_bytes);
  const Execution execution{.workspace = workspace.buffer(), .schedule = schedule.buffer()};
  EXPECT_EQ(refusal_of([&] { attention(p, execution); }), "");
  c->memory.arm();
  const auto expect_refusal = [&](const auto& spoil, const std::string& message) {
    AttentionProblem spoilt = p;
    Execution given = execution;
    spoil(spoilt, given);
    EXPECT_EQ(refusal_of([&] { attention(spoilt, given); }), message);
    EXPECT_EQ(refusal_of([&] { prepare(made, spoilt, given); }), message);
    EXPECT_EQ(refusal_of([&] { run(made, spoilt, given); }), message);
  };
  using P = AttentionProblem;
  expect_refusal([](P& q, Execution& e) { q.k.data = e.workspace.data; },
                 shares("attention", "execution.workspace", "k"));
  expect_refusal([](P& q, Execution& e) { q.out.data = e.workspace.data; },
                 shares("attention", "out", "execution.workspace"));
  expect_refusal([](P& q, Execution& e) { q.lse.data = e.schedule.data; },
                 shares("attention", "lse", "execution.schedule"));
  expect_refusal([](P&, Execution& e) { e.schedule = e.workspace; },
                 shares("attention", "execution.schedule", "execution.workspace"));
  expect_refusal([](P& q, Execution&) { q.out = q.v; }, shares("attention", "out", "v"));
  EXPECT_TRUE(c->memory.untouched());
}

TEST(OverlappingOutputs, Conversions) {
  const HostBsr matrix = make_bsr(patterns::banded(3, 3, 1), 2, 2, DType::f32);
  const HostTensor dense(DType::f32, {6, 6}), norms(DType::f32, {3, 3});
  const auto moved = [](Tensor tensor, const Tensor& onto) {
    tensor.data = onto.data;
    return tensor;
  };
  const Tensor values = matrix.values, columns = matrix.col_indices;
  EXPECT_EQ(refusal_of([&] { to_dense(matrix.view(), moved(dense, values)); }),
            shares("to_dense", "dense", "matrix.values"));
  BsrMatrix inside = matrix.view();
  move_into(dense, inside.col_indices);
  EXPECT_EQ(refusal_of([&] { to_dense(inside, dense); }),
            shares("to_dense", "dense", "matrix.col_indices"));
  BsrMatrix out = matrix.view();
  out.values = moved(values, dense);
  EXPECT_EQ(refusal_of([&] { gather_blocks(dense, out); }),
            shares("gather_blocks", "out.values", "dense"));
  inside = matrix.view();
  move_into(values, inside.row_offsets);
  EXPECT_EQ(refusal_of([&] { gather_blocks(dense, inside); }),
            shares("gather_blocks", "out.values", "out.row_offsets"));
  EXPECT_EQ(refusal_of([&] { block_norms(dense, BlockNorm::largest, moved(norms, dense)); }),
            shares("block_norms", "norms", "dense"));

  const HostTensor four(DType::i32, {4}), nine(DType::i32, {9}), one(DType::i32, {1});
  const auto select = [&](const SelectedBlocks& lists) {
    return refusal_of([&] { select_blocks(norms, {.keep = 3}, lists); });
  };
  EXPECT_EQ(select({four, nine, one}), "");
  EXPECT_EQ(select({four, moved(nine, norms), one}),
            shares("select_blocks", "out.col_indices", "norms"));
  EXPECT_EQ(select({four, nine, moved(one, four)}),
            shares("select_blocks", "out.count", "out.row_offsets"));

  const HostTensor rows(DType::i32, {matrix.view().stored_blocks()});
  const HostTensor positions(DType::i32, {matrix.view().stored_blocks()});
  const auto transposed = [&](const ColumnLists& lists) {
    return refusal_of([&] { transpose_lists(matrix.view(), lists); });
  };
  EXPECT_EQ(transposed({four, rows, positions}), "");
  EXPECT_EQ(transposed({four, rows, rows}),
            shares("transpose_lists", "out.positions", "out.row_indices"));
  EXPECT_EQ(transposed({four, columns, positions}),
            shares("transpose_lists", "out.row_indices", "matrix.col_indices"));
}

TEST(OverlappingOutputs, ListsOfMasks) {
  const HostTensor blocks(DType::u8, {1, 1, 3, 4}), scores(DType::f32, {1, 1, 3, 4});
  const HostTensor counts(DType::i32, {1, 1, 3}), indices(DType::i32, {1, 1, 3, 4});
  const HostTensor more_counts(DType::i32, {1, 1, 3}), more(DType::i32, {1, 1, 3, 4});
  const auto moved = [](Tensor tensor, const Tensor& onto) {
    tensor.data = onto.data;
    return tensor;
  };
  const BlockList list{.counts = counts, .indices = indices};
  EXPECT_EQ(refusal_of([&] {
              list_blocks(blocks, {.counts = moved(counts, blocks), .indices = indices});
            }),
            shares("list_blocks", "out.counts", "blocks"));
  EXPECT_EQ(refusal_of([&] {
              list_blocks(blocks, {.counts = counts, .indices = moved(indices, counts)});
            }),
            shares("list_blocks", "out.indices", "out.counts"));
  EXPECT_EQ(refusal_of([&] {
              list_blocks(blocks, blocks, list, {.counts = more_counts, .indices = indices});
            }),
            shares("list_blocks", "partial_out.indices", "full_out.indices"));
  EXPECT_EQ(refusal_of([&] {
              top_k_blocks(scores, 2, {.counts = counts, .indices = moved(indices, scores)});
            }),
            shares("top_k_blocks", "out.indices", "scores"));

  const HostTensor column_counts(DType::i32, {1, 1, 4}), column_rows(DType::i32, {1, 1, 4, 3});
  const auto transposed = [&](const Tensor& rows, const Tensor& entries) {
    return refusal_of([&] {
      transpose_lists(list, BlockColumns{{.counts = column_counts, .indices = rows}, entries});
    });
  };
  EXPECT_EQ(transposed(column_rows, {}), "");
  EXPECT_EQ(transposed(moved(column_rows, indices), {}),
            shares("transpose_lists", "out.lists.indices", "list.indices"));
  EXPECT_EQ(transposed(column_rows, column_rows),
            shares("transpose_lists", "out.entries", "out.lists.indices"));
}

}  // namespace
}  // namespace tessera
