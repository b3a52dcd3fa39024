#include <cmath>
#include <limits>

#include "tests/fixtures/expect.hpp"

// A refused call names the argument and changes no memory. Each test makes one argument of a valid
// problem invalid.
namespace tessera {
namespace {

using generate::AttentionOptions;
using generate::Case;
using generate::Presence;
using generate::ProductOptions;

template <class Make, class Spoil>
void refuses(Make make, Spoil spoil, const std::string& argument) {
  const auto c = make();
  spoil(c->problem);
  expect::refuses(*c, argument);
}

/// Writes one element of a list.
void put(const Tensor& list, std::size_t at, std::int64_t value) {
  oracle::DenseArray array = oracle::read(list);
  array.values[at] = static_cast<double>(value);
  oracle::write(list, array);
}

std::unique_ptr<Case<MatmulProblem>> dense_product() {
  auto c = std::make_unique<Case<MatmulProblem>>(1);
  c->problem.a = c->memory.input(DType::f32, {6, 8}, generate::Layout::contiguous);
  c->problem.b = c->memory.input(DType::f32, {8, 5}, generate::Layout::contiguous);
  c->problem.out = c->memory.output(DType::f32, {6, 5}, generate::Layout::contiguous);
  return c;
}

std::unique_ptr<Case<MatmulProblem>> sparse_product() {
  auto c = std::make_unique<Case<MatmulProblem>>(1);
  BsrMatrix a;
  a.rows = 6;
  a.cols = 8;
  a.values = c->memory.input(DType::f32, {4, 2, 2}, generate::Layout::contiguous);
  a.row_offsets = c->memory.list(DType::i32, {4}, {0, 2, 2, 4});
  a.col_indices = c->memory.list(DType::i32, {4}, {0, 3, 1, 2});
  c->problem.a = a;
  c->problem.b = c->memory.input(DType::f32, {8, 5}, generate::Layout::contiguous);
  c->problem.out = c->memory.output(DType::f32, {6, 5}, generate::Layout::contiguous);
  return c;
}

std::unique_ptr<Case<MatmulProblem>> grouped_product() {
  auto c = std::make_unique<Case<MatmulProblem>>(1);
  c->problem.a = c->memory.input(DType::f32, {6, 8}, generate::Layout::contiguous);
  c->problem.b = c->memory.input(DType::f32, {2, 8, 5}, generate::Layout::contiguous);
  c->problem.out = c->memory.output(DType::f32, {6, 5}, generate::Layout::contiguous);
  c->problem.group_offsets = c->memory.list(DType::i32, {3}, {0, 4, 6});
  return c;
}

TEST(Errors, TheBasesRun) {
  EXPECT_NO_THROW(matmul(dense_product()->problem));
  EXPECT_NO_THROW(matmul(sparse_product()->problem));
  EXPECT_NO_THROW(matmul(grouped_product()->problem));
}

TEST(Errors, Matmul) {
  using P = MatmulProblem;
  refuses(
      dense_product, [](P& p) { p.a.dense.data = nullptr; }, "matmul: a");
  refuses(
      dense_product, [](P& p) { p.out.data = nullptr; }, "matmul: out");
  refuses(
      dense_product, [](P& p) { p.b.dense.shape[0] = 7; }, "matmul: b");
  refuses(
      dense_product, [](P& p) { p.b.dense.dtype = DType::f16; }, "matmul: b");
  refuses(
      dense_product, [](P& p) { p.a.dense.dtype = DType::i32; }, "matmul: a");
  refuses(
      dense_product, [](P& p) { p.out.dtype = DType::u8; }, "matmul: out");
  refuses(
      dense_product, [](P& p) { p.out.shape[1] = 4; }, "matmul: out");
  refuses(
      dense_product, [](P& p) { p.out.strides[0] = 0; }, "matmul: out");
  refuses(
      dense_product, [](P& p) { p.out.strides[0] = 3; }, "matmul: out");
  refuses(
      dense_product, [](P& p) { p.a.dense.shape[0] = -1; }, "matmul: a");
  refuses(
      dense_product, [](P& p) { p.a.dense.shape[0] = std::int64_t{1} << 62; }, "matmul: a");
  refuses(
      dense_product, [](P& p) { p.a.dense.rank = 1; }, "matmul: a");
  refuses(
      dense_product, [](P& p) { p.a.dense.rank = 9; }, "matmul: a");
  refuses(
      dense_product, [](P& p) { p.out.device.kind = DeviceKind::cuda; }, "matmul: out");
  refuses(
      dense_product, [](P& p) { p.a = Operand(); }, "matmul: a");
  refuses(
      dense_product, [](P& p) { p.epilogue.alpha = std::nanf(""); }, "alpha");
  refuses(
      dense_product, [](P& p) { p.epilogue.beta = HUGE_VALF; }, "beta");
  refuses(
      dense_product, [](P& p) { p.epilogue.bias = p.a.dense; }, "bias");
  refuses(
      dense_product, [](P& p) { p.epilogue.c = p.a.dense; }, "epilogue.c");
}

TEST(Errors, SparseLists) {
  using P = MatmulProblem;
  refuses(
      sparse_product, [](P& p) { put(p.a.sparse.col_indices, 1, 4); }, "col_indices");
  refuses(
      sparse_product, [](P& p) { put(p.a.sparse.col_indices, 1, -1); }, "col_indices");
  refuses(
      sparse_product, [](P& p) { put(p.a.sparse.col_indices, 1, 0); }, "col_indices");
  refuses(
      sparse_product, [](P& p) { put(p.a.sparse.col_indices, 3, 0); }, "col_indices");
  refuses(
      sparse_product, [](P& p) { put(p.a.sparse.row_offsets, 0, 1); }, "row_offsets");
  refuses(
      sparse_product, [](P& p) { put(p.a.sparse.row_offsets, 1, 3); }, "row_offsets");
  refuses(
      sparse_product, [](P& p) { put(p.a.sparse.row_offsets, 3, 5); }, "row_offsets");
  refuses(
      sparse_product, [](P& p) { put(p.a.sparse.row_offsets, 3, 3); }, "row_offsets");
  refuses(
      sparse_product, [](P& p) { p.a.sparse.rows = 7; }, "rows");
  refuses(
      sparse_product, [](P& p) { p.a.sparse.row_offsets.dtype = DType::f32; }, "row_offsets");
  refuses(
      sparse_product, [](P& p) { p.a.sparse.values.data = nullptr; }, "values");
  refuses(
      sparse_product, [](P& p) { p.a.sparse.col_indices.data = nullptr; }, "col_indices");
  refuses(
      sparse_product, [](P& p) { p.a.dense = p.b.dense; }, "matmul: a");
}

TEST(Errors, Groups) {
  using P = MatmulProblem;
  refuses(
      grouped_product, [](P& p) { put(p.group_offsets, 1, 7); }, "group_offsets");
  refuses(
      grouped_product, [](P& p) { put(p.group_offsets, 0, 1); }, "group_offsets");
  refuses(
      grouped_product, [](P& p) { put(p.group_offsets, 2, 5); }, "group_offsets");
  refuses(
      grouped_product, [](P& p) { put(p.group_offsets, 1, -1); }, "group_offsets");
  refuses(
      grouped_product, [](P& p) { p.group_offsets.shape[0] = 2; }, "matmul: b");
}

std::unique_ptr<Case<SddmmProblem>> sampled_product() {
  auto c = std::make_unique<Case<SddmmProblem>>(1);
  c->problem.a = c->memory.input(DType::f32, {6, 7}, generate::Layout::contiguous);
  c->problem.b = c->memory.input(DType::f32, {7, 8}, generate::Layout::contiguous);
  BsrMatrix& out = c->problem.out;
  out.rows = 6;
  out.cols = 8;
  out.values = c->memory.output(DType::f32, {4, 2, 2}, generate::Layout::contiguous);
  out.row_offsets = c->memory.list(DType::i32, {4}, {0, 2, 2, 4});
  out.col_indices = c->memory.list(DType::i32, {4}, {0, 3, 1, 2});
  return c;
}

TEST(Errors, Sddmm) {
  using P = SddmmProblem;
  EXPECT_NO_THROW(sddmm(sampled_product()->problem));
  refuses(
      sampled_product, [](P& p) { put(p.out.col_indices, 3, 9); }, "out.col_indices");
  refuses(
      sampled_product, [](P& p) { p.out.rows = 8; }, "sddmm: out");
  refuses(
      sampled_product, [](P& p) { p.out.values.strides[0] = 1; }, "out.values");
  refuses(
      sampled_product, [](P& p) { p.alpha = std::nanf(""); }, "alpha");
  refuses(
      sampled_product, [](P& p) { p.b.dense.data = nullptr; }, "sddmm: b");
}

/// Packed queries, dense keys, and a mask with full and partial lists and bits.
std::unique_ptr<Case<AttentionProblem>> masked_attention() {
  auto c = std::make_unique<Case<AttentionProblem>>(1);
  generate::Memory& memory = c->memory;
  AttentionProblem& p = c->problem;
  p.q = memory.input(DType::f32, {7, 4, 8}, generate::Layout::contiguous);
  p.k = memory.input(DType::f32, {2, 9, 2, 8}, generate::Layout::contiguous);
  p.v = memory.input(DType::f32, {2, 9, 2, 6}, generate::Layout::contiguous);
  p.out = memory.output(DType::f32, {7, 4, 6}, generate::Layout::contiguous);
  p.lse = memory.output(DType::f32, {4, 7}, generate::Layout::contiguous);
  p.q_offsets = memory.list(DType::i32, {3}, {0, 4, 7});
  p.max_q_length = 4;
  p.kv_begin = memory.list(DType::i64, {2}, {0, 3});
  p.kv_end = memory.list(DType::i64, {2}, {9, 8});
  p.mask.block_q = 4;
  p.mask.block_kv = 4;
  p.mask.full.counts = memory.list(DType::i32, {1, 1, 1}, {1});
  p.mask.full.indices = memory.list(DType::i32, {1, 1, 1, 2}, {2, -1});
  p.mask.partial.offsets = memory.list(DType::i32, {1, 1, 2}, {0, 2});
  p.mask.partial.indices = memory.list(DType::i32, {2}, {1, 0});
  p.mask.bit_tile = memory.list(DType::i32, {2}, {0, 1});
  p.mask.bits = memory.list(DType::u8, {2, 4, 1}, std::vector<std::int64_t>(8, 5));
  p.sinks = memory.input(DType::f32, {4}, generate::Layout::contiguous);
  return c;
}

std::unique_ptr<Case<AttentionProblem>> paged_attention() {
  auto c = std::make_unique<Case<AttentionProblem>>(1);
  generate::Memory& memory = c->memory;
  AttentionProblem& p = c->problem;
  p.q = memory.input(DType::f32, {2, 3, 4, 8}, generate::Layout::contiguous);
  p.k = memory.input(DType::f32, {5, 4, 2, 8}, generate::Layout::contiguous);
  p.v = memory.input(DType::f32, {5, 4, 2, 8}, generate::Layout::contiguous);
  p.out = memory.output(DType::f32, {2, 3, 4, 8}, generate::Layout::contiguous);
  p.page_table = memory.list(DType::i32, {2, 3}, {0, 3, -1, 4, 2, 1});
  p.kv_end = memory.list(DType::i32, {2}, {7, 12});
  return c;
}

TEST(Errors, Attention) {
  using P = AttentionProblem;
  EXPECT_NO_THROW(attention(masked_attention()->problem));
  refuses(
      masked_attention, [](P& p) { p.q.data = nullptr; }, "attention: q");
  refuses(
      masked_attention, [](P& p) { p.k.shape[3] = 7; }, "attention: k");
  refuses(
      masked_attention, [](P& p) { p.k.shape[2] = 3; }, "attention: ");
  refuses(
      masked_attention, [](P& p) { p.v.dtype = DType::f16; }, "attention: v");
  refuses(
      masked_attention, [](P& p) { p.v.shape[1] = 8; }, "attention: v");
  refuses(
      masked_attention, [](P& p) { p.out.shape[2] = 8; }, "attention: out");
  refuses(
      masked_attention, [](P& p) { p.out.strides[1] = 0; }, "attention: out");
  refuses(
      masked_attention, [](P& p) { p.lse.dtype = DType::f16; }, "attention: lse");
  refuses(
      masked_attention, [](P& p) { p.lse.shape[1] = 6; }, "attention: lse");
  refuses(
      masked_attention, [](P& p) { p.scale = std::nanf(""); }, "scale");
  refuses(
      masked_attention, [](P& p) { p.scale = HUGE_VALF; }, "scale");
  refuses(
      masked_attention, [](P& p) { p.softcap = -1; }, "softcap");
  refuses(
      masked_attention, [](P& p) { p.softcap = std::nanf(""); }, "softcap");
  refuses(
      masked_attention, [](P& p) { p.window_left = -1; }, "window_left");
  refuses(
      masked_attention, [](P& p) { p.window_right = -7; }, "window_right");
  refuses(
      masked_attention, [](P& p) { put(p.q_offsets, 1, 8); }, "q_offsets");
  refuses(
      masked_attention, [](P& p) { put(p.q_offsets, 2, 3); }, "q_offsets");
  refuses(
      masked_attention, [](P& p) { put(p.q_offsets, 0, 1); }, "q_offsets");
  refuses(
      masked_attention, [](P& p) { p.max_q_length = 3; }, "q_offsets");
  refuses(
      masked_attention, [](P& p) { p.max_q_length = -3; }, "max_q_length");
  refuses(
      masked_attention, [](P& p) { put(p.kv_end, 0, 10); }, "kv_end");
  refuses(
      masked_attention, [](P& p) { put(p.kv_begin, 1, 9); }, "kv_begin");
  refuses(
      masked_attention, [](P& p) { put(p.kv_begin, 0, -1); }, "kv_begin");
  refuses(
      masked_attention, [](P& p) { p.sinks.shape[0] = 2; }, "sinks");
}

TEST(Errors, Masks) {
  using P = AttentionProblem;
  refuses(
      masked_attention, [](P& p) { p.mask.block_q = 0; }, "block_q");
  refuses(
      masked_attention, [](P& p) { p.mask.block_kv = -4; }, "block_kv");
  refuses(
      masked_attention, [](P& p) { p.mask.block_q = 2; }, "mask.full");
  refuses(
      masked_attention, [](P& p) { put(p.mask.full.counts, 0, 3); }, "mask.full.counts");
  refuses(
      masked_attention, [](P& p) { put(p.mask.full.counts, 0, -1); }, "mask.full.counts");
  refuses(
      masked_attention, [](P& p) { put(p.mask.full.counts, 0, 2); }, "mask.full.indices");
  refuses(
      masked_attention, [](P& p) { put(p.mask.full.indices, 0, 3); }, "mask.full.indices");
  refuses(
      masked_attention, [](P& p) { put(p.mask.partial.indices, 0, 0); }, "mask.partial");
  refuses(
      masked_attention, [](P& p) { put(p.mask.partial.indices, 0, 2); }, "mask.partial");
  refuses(
      masked_attention, [](P& p) { put(p.mask.partial.offsets, 1, 3); }, "partial.offsets");
  refuses(
      masked_attention, [](P& p) { put(p.mask.bit_tile, 1, 2); }, "bit_tile");
  refuses(
      masked_attention, [](P& p) { p.mask.bits.shape[2] = 2; }, "bits");
  refuses(
      masked_attention, [](P& p) { p.mask.bits = {}; }, "bits");
  refuses(
      masked_attention, [](P& p) { p.mask.full.counts.dtype = DType::u8; }, "full.counts");
}

TEST(Errors, Pages) {
  using P = AttentionProblem;
  EXPECT_NO_THROW(attention(paged_attention()->problem));
  refuses(
      paged_attention, [](P& p) { put(p.page_table, 1, 5); }, "page_table");
  refuses(
      paged_attention, [](P& p) { put(p.page_table, 3, -1); }, "page_table");
  refuses(
      paged_attention, [](P& p) { put(p.kv_end, 0, 9); }, "page_table");
  refuses(
      paged_attention, [](P& p) { put(p.kv_end, 0, 13); }, "kv_end");
  refuses(
      paged_attention, [](P& p) { p.kv_end = {}; }, "kv_end");
  refuses(
      paged_attention, [](P& p) { p.page_table.dtype = DType::i64; }, "page_table");
}

TEST(Errors, Backward) {
  using P = AttentionBackwardProblem;
  const auto make = [] {
    AttentionOptions options;
    options.dtype = DType::f32;
    options.mask = options.packed_q = options.packed_kv = Presence::never;
    options.layout = generate::Layout::contiguous;
    // Finds a seed whose problem has all gradients, and enough queries and keys.
    for (std::uint64_t seed = 0;; ++seed) {
      auto c = generate::backward_case(seed, options);
      const P& p = c->problem;
      if (p.dq && p.dk && p.dv && p.dq.numel() > 64 && p.dv.numel() > 64) return c;
    }
  };
  refuses(
      make, [](P& p) { p.dout.shape[1] += 1; }, "dout");
  refuses(
      make, [](P& p) { p.dout = {}; }, "dout");
  refuses(
      make, [](P& p) { p.dq.data = nullptr; }, "dq");
  refuses(
      make, [](P& p) { p.dk.shape[3] += 1; }, "dk");
  refuses(
      make, [](P& p) { p.dv.dtype = DType::i64; }, "dv");
  refuses(
      make, [](P& p) { p.forward.lse = {}; }, "lse");
  refuses(
      make, [](P& p) { p.forward.out = {}; }, "out");
}

TEST(Errors, MergeStates) {
  using P = MergeStatesProblem;
  const auto make = [] { return generate::merge_case(2); };
  refuses(
      make, [](P& p) { p.outs.clear(); }, "outs");
  refuses(
      make, [](P& p) { p.lses.pop_back(); }, "lses");
  refuses(
      make, [](P& p) { p.outs[0].data = nullptr; }, "outs[0]");
  refuses(
      make, [](P& p) { p.lses[0].shape[0] += 1; }, "lses[0]");
  refuses(
      make, [](P& p) { p.out.dtype = DType::i32; }, "out");
}

TEST(Errors, Spgemm) {
  auto c = generate::spgemm_case(0, {.dtype = DType::f32});
  for (std::uint64_t seed = 1; oracle::spgemm_pattern(c->problem).stored() == 0; ++seed) {
    c = generate::spgemm_case(seed, {.dtype = DType::f32});
  }
  const BsrMatrix out = output_for(*c, oracle::spgemm_pattern(c->problem), DType::f32, DType::i32);
  c->memory.arm();
  const auto refused = [&](const BsrMatrix& wrong) {
    EXPECT_THROW(spgemm_numeric(c->problem, wrong), Error);
    const SpgemmPlan plan = spgemm_symbolic(c->problem);
    EXPECT_THROW(spgemm_numeric(plan, c->problem, wrong), Error);
    EXPECT_TRUE(c->memory.untouched());
  };
  BsrMatrix wrong = out;
  wrong.rows += wrong.block_rows();
  refused(wrong);
  wrong = out;
  wrong.values.data = nullptr;
  refused(wrong);
  wrong = out;
  wrong.values.shape[1] += 1;
  refused(wrong);
  wrong = out;
  wrong.col_indices.data = nullptr;
  refused(wrong);
  SpgemmProblem bad = c->problem;
  bad.a.sparse = {};
  EXPECT_THROW(spgemm_symbolic(bad), Error);
}

/// A backend that this build lacks, or that does not exist, is refused with reasons.
TEST(Errors, Backends) {
  const auto c = dense_product();
  c->memory.arm();
  EXPECT_THROW(matmul(c->problem, {.backend = Backend::sm90}), Error);
  EXPECT_TRUE(c->memory.untouched());
  EXPECT_NO_THROW(matmul(c->problem, {.backend = Backend::cpu}));
}

}  // namespace
}  // namespace tessera
