#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "tests/fixtures/expect.hpp"
#include "tests/fixtures/fuzz.hpp"
#include "tests/fixtures/tensors.hpp"

// Any description of a problem either runs and gives the right result, or throws Error and changes
// no memory. It never crashes, hangs or gives a wrong result.
namespace tessera {
namespace {

using fuzz::explains;
using fuzz::Watchdog;
using generate::Case;
using generate::Memory;
using generate::Random;

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// ---- Parts of problems

/// The parts of a problem that may be changed. Outputs and inputs are separate, so that no change
/// makes them alias.
struct Parts {
  std::vector<Tensor*> inputs, outputs;
  std::vector<float*> numbers;
  std::vector<std::int64_t*> sizes;
  std::vector<Operand*> operands;
};

void add(Parts& parts, BsrMatrix& m, bool output) {
  (output ? parts.outputs : parts.inputs).push_back(&m.values);
  parts.inputs.insert(parts.inputs.end(), {&m.row_offsets, &m.col_indices});
  parts.sizes.insert(parts.sizes.end(), {&m.rows, &m.cols});
}

void add(Parts& parts, Operand& operand) {
  parts.operands.push_back(&operand);
  parts.inputs.push_back(&operand.scale);
  if (operand.is_sparse()) {
    add(parts, operand.sparse, false);
  } else {
    parts.inputs.push_back(&operand.dense);
  }
}

Parts parts_of(MatmulProblem& p) {
  Parts parts;
  add(parts, p.a);
  add(parts, p.b);
  parts.outputs = {&p.out};
  parts.inputs.insert(parts.inputs.end(), {&p.epilogue.c, &p.epilogue.bias, &p.group_offsets});
  parts.numbers = {&p.epilogue.alpha, &p.epilogue.beta};
  return parts;
}

Parts parts_of(SddmmProblem& p) {
  Parts parts;
  add(parts, p.a);
  add(parts, p.b);
  add(parts, p.out, true);
  parts.numbers = {&p.alpha, &p.beta};
  return parts;
}

Parts parts_of(AttentionProblem& p) {
  Parts parts;
  BlockMask& mask = p.mask;
  parts.inputs = inputs_of(p);
  parts.outputs = {&p.out, &p.lse};
  parts.numbers = {&p.softcap};
  parts.sizes = {&p.max_q_length, &p.max_kv_length, &mask.block_q, &mask.block_kv};
  return parts;
}

Parts parts_of(AttentionBackwardProblem& p) {
  Parts parts = parts_of(p.forward);
  parts.inputs.insert(parts.inputs.end(), {&p.forward.out, &p.forward.lse, &p.dout, &p.dlse});
  parts.outputs = {&p.dq, &p.dk, &p.dv, &p.dsinks};
  return parts;
}

Parts parts_of(MergeStatesProblem& p) {
  Parts parts;
  for (Tensor& out : p.outs) parts.inputs.push_back(&out);
  for (Tensor& lse : p.lses) parts.inputs.push_back(&lse);
  parts.inputs.push_back(&p.sinks);
  parts.outputs = {&p.out, &p.lse};
  return parts;
}

// ---- Changes

std::int64_t odd_size(Random& random) {
  return random.pick<std::int64_t>({-1, 0, 0, 1, 2, 3, 7, 16, 64, -kLargest - 1, kLargest,
                                    std::int64_t{1} << 31, std::int64_t{1} << 32,
                                    std::int64_t{1} << 40, std::int64_t{1} << 61});
}

DType odd_type(Random& random) {
  return random.pick({DType::none, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2,
                      DType::i32, DType::i64, DType::u8, static_cast<DType>(77)});
}

float odd_number(Random& random) {
  return random.pick({0.0f, -0.0f, 1.0f, -3.5f, std::nanf(""), HUGE_VALF, -HUGE_VALF, 1e30f});
}

void change_tensor(Random& random, Tensor& tensor, bool output) {
  const auto dim = static_cast<std::size_t>(random.between(0, kMaxRank - 1));
  switch (random.between(0, 11)) {
    case 0:
      tensor.dtype = odd_type(random);
      break;
    case 1:
      tensor.rank = static_cast<int>(random.between(-1, 6));
      break;
    case 2:
      tensor.shape[dim] = odd_size(random);
      break;
    case 3:
      tensor.shape[dim] += random.pick({-1, 1});
      break;
    case 4:
      tensor.strides[dim] = odd_size(random);
      break;
    case 5:
      tensor.strides[dim] = random.between(-3, 30);
      break;
    case 6:
      tensor.data = nullptr;
      break;
    case 7:
      tensor = {};
      break;
    case 8:
      tensor.device.kind = DeviceKind::cuda;
      break;
    case 9:
      std::swap(tensor.shape[dim], tensor.shape[(dim + 1) % kMaxRank]);
      break;
    case 10:
      std::swap(tensor.shape[dim], tensor.shape[(dim + 1) % kMaxRank]);
      std::swap(tensor.strides[dim], tensor.strides[(dim + 1) % kMaxRank]);
      break;
    case 11:
      // One element of a list.
      if (output || !tensor.data || tensor.rank < 1 || tensor.rank > kMaxRank) break;
      if (tensor.dtype != DType::i32 && tensor.dtype != DType::i64) break;
      if (tensor.numel() <= 0) break;
      if (tensor.dtype == DType::i32) {
        *static_cast<std::int32_t*>(tensor.data) =
            static_cast<std::int32_t>(random.pick<std::int64_t>({-1, 0, 1, 2, 1 << 30}));
      } else {
        *static_cast<std::int64_t*>(tensor.data) = odd_size(random);
      }
      break;
  }
}

/// Makes up to three changes. Returns whether an input or a number is among them.
bool change(Random& random, Parts& parts) {
  bool inputs = false;
  for (std::int64_t n = random.between(0, 3); n > 0; --n) {
    const int what = static_cast<int>(random.between(0, 9));
    const auto any = [&](auto& list) {
      return list[static_cast<std::size_t>(
          random.between(0, static_cast<std::int64_t>(list.size()) - 1))];
    };
    if (what < 2) {
      change_tensor(random, *any(parts.outputs), true);
      continue;
    }
    inputs = true;
    if (what < 6 && !parts.inputs.empty()) change_tensor(random, *any(parts.inputs), false);
    if (what == 6 && !parts.numbers.empty()) *any(parts.numbers) = odd_number(random);
    if (what == 7 && !parts.sizes.empty()) *any(parts.sizes) = odd_size(random);
    if (what == 8 && !parts.operands.empty()) {
      Operand& operand = *any(parts.operands);
      operand.transposed = !operand.transposed;
    }
    // Replaces one input by another.
    if (what == 9 && !parts.inputs.empty()) *any(parts.inputs) = *any(parts.inputs);
  }
  return inputs;
}

/// Non-null pointers must be valid, so those of tensors outside the memory become null.
void keep_real(const Memory& memory, const Parts& parts) {
  for (const auto& list : {parts.inputs, parts.outputs}) {
    for (Tensor* tensor : list) {
      if (tensor->data && !memory.holds(*tensor)) tensor->data = nullptr;
    }
  }
}

/// Changes that only some kinds of problems have.
void change_more(Random&, MatmulProblem&) {}
void change_more(Random&, SddmmProblem&) {}
void change_more(Random&, MergeStatesProblem&) {}
void change_more(Random& random, AttentionProblem& p) {
  if (random.chance(0.1)) p.scale = odd_number(random);
  if (random.chance(0.1)) p.window_left = odd_size(random);
  if (random.chance(0.1)) p.window_right = odd_size(random);
  if (random.chance(0.1)) p.causal = !p.causal;
}
void change_more(Random& random, AttentionBackwardProblem& p) { change_more(random, p.forward); }

// ---- Running

struct Outcomes {
  int ran = 0, refused = 0, compared = 0;
};

bool all_finite(const oracle::DenseArray& array) {
  return std::all_of(array.values.begin(), array.values.end(),
                     [](double x) { return std::isfinite(x) && std::fabs(x) < 1e6; });
}

/// Whether the error budgets apply to the floats that a problem reads.
bool sober(const Parts& parts) {
  for (const Tensor* tensor : parts.inputs) {
    const bool floats =
        tensor->dtype == DType::f32 || tensor->dtype == DType::f16 || tensor->dtype == DType::bf16;
    if (floats && !all_finite(oracle::read(*tensor))) return false;
  }
  return std::all_of(parts.numbers.begin(), parts.numbers.end(),
                     [](const float* x) { return std::fabs(*x) < 1e6; });
}

/// Runs one case. `changed`: its inputs differ from the generated ones. `remembers`: it holds
/// results that were computed from the generated inputs.
template <class AnyCase>
void run_one(AnyCase& c, bool changed, bool remembers, Outcomes& outcomes) {
  c.memory.arm();
  explains(c.random, c.problem);
  try {
    expect::solve(c.problem, {.threads = static_cast<int>(c.random.between(1, 2))});
  } catch (const Error&) {
    ++outcomes.refused;
    EXPECT_TRUE(c.memory.untouched()) << c.text << ": memory changed by a refused call";
    return;
  }
  ++outcomes.ran;
  if (changed && (remembers || !sober(parts_of(c.problem)))) return;
  const oracle::Comparison result = expect::check(c);
  ++outcomes.compared;
  EXPECT_TRUE(result.ok) << c.text << ": " << result.message;
}

template <class Make>
Outcomes fuzz_cases(const char* name, std::uint64_t seeds, bool remembers, Make make) {
  Watchdog watchdog;
  Outcomes outcomes;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const auto c = make(seed);
    c->text = std::string(name) + " seed " + std::to_string(seed);
    watchdog.next(c->text);
    Parts parts = parts_of(c->problem);
    bool changed = change(c->random, parts);
    if (c->random.chance(0.2)) {
      change_more(c->random, c->problem);
      changed = true;
    }
    parts = parts_of(c->problem);
    keep_real(c->memory, parts);
    if constexpr (requires { c->problem.epilogue; }) {
      // Reads the former contents through the changed output.
      c->former.reset();
      if (c->problem.out.data && c->problem.out.rank > 0 && c->memory.holds(c->problem.out)) {
        c->former = oracle::read(c->problem.out);
      }
    } else if constexpr (requires { c->problem.out.values; }) {
      const Tensor& values = c->problem.out.values;
      if (values.data && values.rank > 0 && c->memory.holds(values)) {
        c->former = oracle::read(values);
      }
    }
    run_one(*c, changed, remembers, outcomes);
    if (::testing::Test::HasFailure()) break;
  }
  std::printf("%s: %d ran, %d of them compared, %d refused\n", name, outcomes.ran,
              outcomes.compared, outcomes.refused);
  // Each outcome must be common, else the changes are too small or too large.
  const auto enough = static_cast<int>(seeds / 10);
  EXPECT_GT(outcomes.ran, enough);
  EXPECT_GT(outcomes.refused, enough);
  EXPECT_GT(outcomes.compared, enough);
  return outcomes;
}

generate::AttentionOptions small() { return {.longest = 12}; }

TEST(Fuzz, Matmul) {
  fuzz_cases("matmul", 2500, false,
             [](std::uint64_t seed) { return generate::matmul_case(seed, {.largest = 12}); });
}
TEST(Fuzz, MatmulOfFp8) {
  fuzz_cases("matmul of FP8", 2500, false, [](std::uint64_t seed) {
    return generate::matmul_case(seed, {.fp8 = true, .largest = 12});
  });
}
TEST(Fuzz, GroupedMatmul) {
  fuzz_cases("grouped matmul", 1000, false, [](std::uint64_t seed) {
    return generate::matmul_case(seed, {.grouped = seed % 2 ? GroupAxis::rows : GroupAxis::inner,
                                        .fp8 = seed % 3 == 0,
                                        .largest = 10});
  });
}
TEST(Fuzz, Sddmm) {
  fuzz_cases("sddmm", 1500, false,
             [](std::uint64_t seed) { return generate::sddmm_case(seed, {.largest = 12}); });
}
TEST(Fuzz, Attention) {
  fuzz_cases("attention", 3000, false,
             [](std::uint64_t seed) { return generate::attention_case(seed, small()); });
}
TEST(Fuzz, AttentionOfFp8) {
  fuzz_cases("attention of FP8", 2000, false, [](std::uint64_t seed) {
    generate::AttentionOptions options = small();
    options.dtype = DType::e4m3;
    return generate::attention_case(seed, options);
  });
}
TEST(Fuzz, AttentionBackward) {
  fuzz_cases("attention_backward", 2000, true,
             [](std::uint64_t seed) { return generate::backward_case(seed, small()); });
}
TEST(Fuzz, MergeStates) {
  fuzz_cases("merge_states", 1500, true,
             [](std::uint64_t seed) { return generate::merge_case(seed); });
}

/// The output of spgemm is not part of the problem.
TEST(Fuzz, Spgemm) {
  Watchdog watchdog;
  int ran = 0, refused = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    const auto c = generate::spgemm_case(seed, {.largest = 12});
    const Pattern whole = oracle::spgemm_pattern(c->problem);
    const bool planned = c->random.chance(0.5);
    BsrMatrix out =
        output_for(*c, planned ? whole : generate::wild_pattern(c->random, whole.rows, whole.cols),
                   DType::f32, DType::i32);
    c->text = "spgemm seed " + std::to_string(seed);
    watchdog.next(c->text);
    Parts parts;
    add(parts, c->problem.a);
    add(parts, c->problem.b);
    parts.outputs = {&out.values};
    parts.numbers = {&c->problem.alpha, &c->problem.beta};
    parts.sizes.insert(parts.sizes.end(), {&out.rows, &out.cols});
    change(c->random, parts);
    parts = {};
    add(parts, c->problem.a);
    add(parts, c->problem.b);
    parts.outputs = {&out.values};
    parts.numbers = {&c->problem.alpha, &c->problem.beta};
    keep_real(c->memory, parts);
    if (out.values.data && out.values.rank > 0) c->former = oracle::read(out.values);
    c->memory.arm();
    explains(c->random, c->problem);
    try {
      if (planned) {
        spgemm_numeric(spgemm_symbolic(c->problem), c->problem, out, {.threads = 1});
      } else {
        spgemm_numeric(c->problem, out, {.threads = 1});
      }
    } catch (const Error&) {
      ++refused;
      ASSERT_TRUE(c->memory.untouched()) << c->text;
      continue;
    }
    ++ran;
    if (!sober(parts)) continue;
    const oracle::Comparison result = oracle::check(c->problem, out, c->former_values());
    ASSERT_TRUE(result.ok) << c->text << ": " << result.message;
  }
  std::printf("spgemm: %d ran, %d refused\n", ran, refused);
  EXPECT_GT(ran, 150);
  EXPECT_GT(refused, 150);
}

}  // namespace
}  // namespace tessera
