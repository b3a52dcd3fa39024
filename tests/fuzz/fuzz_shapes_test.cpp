#include <limits>

#include "tests/fixtures/expect.hpp"
#include "tests/fixtures/fuzz.hpp"

namespace tessera {
namespace {

using fuzz::explains;
using fuzz::Watchdog;
using generate::Random;

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

/// Problems of consistent shapes of any size, without memory. Planning must not fail in other ways
/// than by Error, and running must refuse all problems that are not empty.
class Phantom {
 public:
  explicit Phantom(std::uint64_t seed) : random_(seed) {}

  AnyProblem problem() {
    switch (random_.between(0, 3)) {
      case 0:
        return matmul();
      case 1:
        return sddmm();
      case 2:
        return attention();
      default:
        return backward();
    }
  }
  Random& random() { return random_; }

 private:
  std::int64_t size() {
    if (random_.chance(0.3)) return 0;
    return random_.pick<std::int64_t>({1, 2, 3, 8, 64, 4096, std::int64_t{1} << 20,
                                       std::int64_t{1} << 31, std::int64_t{1} << 40,
                                       std::int64_t{1} << 59, kLargest});
  }
  static Tensor view(DType dtype, std::initializer_list<std::int64_t> shape) {
    Tensor t;
    t.dtype = dtype;
    for (std::int64_t n : shape) t.shape[static_cast<std::size_t>(t.rank++)] = n;
    // Contiguous strides, which wrap around where the product of the sizes does.
    std::uint64_t stride = 1;
    for (int d = t.rank - 1; d >= 0; --d) {
      t.strides[static_cast<std::size_t>(d)] = static_cast<std::int64_t>(stride);
      stride *= static_cast<std::uint64_t>(t.size(d));
    }
    return t;
  }
  Tensor list(std::initializer_list<std::int64_t> shape) { return view(DType::i64, shape); }

  BsrMatrix bsr(std::int64_t rows, std::int64_t cols, std::int64_t r, std::int64_t c) {
    BsrMatrix m;
    m.rows = rows;
    m.cols = cols;
    const std::int64_t stored = size();
    m.values = view(type_, {stored, r, c});
    m.row_offsets = list({r > 0 ? rows / r + (rows < kLargest ? 1 : 0) : 1});
    m.col_indices = list({stored});
    return m;
  }

  AnyProblem matmul() {
    const std::int64_t m = size(), n = size(), k = size();
    MatmulProblem p;
    p.a = random_.chance(0.3) ? Operand(bsr(m, k, 1, 1)) : Operand(view(type_, {m, k}));
    p.b = random_.chance(0.3) ? Operand(bsr(k, n, 1, 1)) : Operand(view(type_, {k, n}));
    p.out = view(type_, {m, n});
    if (random_.chance(0.3)) {
      const std::int64_t batch = size();
      p.a = view(type_, {batch, m, k});
      p.out = view(type_, {batch, m, n});
    }
    return p;
  }
  AnyProblem sddmm() {
    const std::int64_t m = size(), n = size(), k = size();
    return SddmmProblem{.a = view(type_, {m, k}), .b = view(type_, {k, n}), .out = bsr(m, n, 1, 1)};
  }
  AttentionProblem attention() {
    const std::int64_t b = size(), h = size(), q = size(), kv = size(), d = size();
    AttentionProblem p;
    p.q = p.out = view(type_, {b, q, h, d});
    p.k = p.v = view(type_, {b, kv, h, d});
    if (random_.chance(0.3)) {
      // Packed, with no sequences or many.
      p.q = p.out = view(type_, {q, h, d});
      p.q_offsets = list({b < kLargest ? b + 1 : b});
    } else if (random_.chance(0.3)) {
      const std::int64_t pages = size();
      p.k = p.v = view(type_, {pages, kv, h, d});
      p.page_table = view(DType::i32, {b, size()});
      p.kv_end = list({b});
    }
    if (random_.chance(0.3)) {
      p.mask.block_q = size();
      p.mask.block_kv = size();
      p.mask.full.counts = list({1, 1, size()});
      p.mask.full.indices = list({1, 1, p.mask.full.counts.size(2), size()});
    }
    if (random_.chance(0.3)) p.window_left = size();
    return p;
  }
  AnyProblem backward() {
    AttentionBackwardProblem p{.forward = attention()};
    const AttentionProblem& f = p.forward;
    p.forward.lse = f.q_offsets ? view(DType::f32, {f.q.size(1), f.q.size(0)})
                                : view(DType::f32, {f.q.size(0), f.q.size(2), f.q.size(1)});
    p.dout = p.dq = f.q;
    p.dk = p.dv = f.k;
    return p;
  }

  Random random_;
  DType type_ = random_.pick({DType::f32, DType::bf16, DType::e4m3, DType::e5m2});
};

TEST(Fuzz, ShapesWithoutMemory) {
  Watchdog watchdog;
  int planned = 0, refused = 0, ran = 0;
  for (std::uint64_t seed = 0; seed < 6000; ++seed) {
    watchdog.next("phantom seed " + std::to_string(seed));
    Phantom phantom(seed);
    const AnyProblem problem = phantom.problem();
    explains(phantom.random(), problem);
    try {
      const std::int64_t limit = phantom.random().pick(
          {std::int64_t{0}, std::int64_t{1} << 20, std::numeric_limits<std::int64_t>::max()});
      const Plan made = plan(problem, device_preset("cpu"), {.expand_bytes = limit});
      EXPECT_LE(made.expanded_bytes, limit) << "seed " << seed;
      EXPECT_LE(made.expanded_bytes, made.schedule_bytes) << "seed " << seed;
      EXPECT_GE(made.workspace_bytes, 0) << "seed " << seed;
      EXPECT_GE(made.schedule_bytes, 0) << "seed " << seed;
      ++planned;
    } catch (const Error&) {
      ++refused;
    }
    try {
      std::visit(
          [](const auto& p) {
            if constexpr (requires { expect::solve(p, Execution{}); }) {
              expect::solve(p, {.threads = 1});
            }
          },
          problem);
      ++ran;
    } catch (const Error&) {
    }
  }
  std::printf("shapes: %d planned, %d refused, %d ran\n", planned, refused, ran);
  EXPECT_GT(planned, 500);
  EXPECT_GT(refused, 500);
  EXPECT_GT(ran, 100);
}

}  // namespace
}  // namespace tessera
