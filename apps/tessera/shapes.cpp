#include "apps/tessera/shapes.hpp"

#include <utility>

#include "apps/tessera/command.hpp"

namespace tessera::tool {

namespace {

using Shape = std::initializer_list<std::int64_t>;

// Makes problems from options: tensors with null data, all on one device.
class Maker {
 public:
  Maker(const ShapeOptions& options, DeviceKind device)
      : o_(options),
        device_{device, 0},
        dtype_(parse_dtype(options.dtype)),
        out_(!options.out_dtype.empty() ? parse_dtype(options.out_dtype)
             : size_of(dtype_) == 1     ? DType::bf16
                                        : dtype_) {}

  MatmulProblem matmul(bool sparse) const {
    MatmulProblem problem;
    problem.a = operand(o_.m, o_.k, o_.transpose_a, sparse && o_.sparse != "b");
    problem.b = operand(o_.k, o_.n, o_.transpose_b, sparse && o_.sparse != "a");
    problem.out = dense(out_, o_.m, o_.n);
    return problem;
  }

  SddmmProblem sddmm() const {
    SddmmProblem problem;
    problem.a = operand(o_.m, o_.k, o_.transpose_a, false);
    problem.b = operand(o_.k, o_.n, o_.transpose_b, false);
    problem.out = bsr(o_.m, o_.n);
    return problem;
  }

  SpgemmProblem spgemm() const {
    SpgemmProblem problem;
    problem.a = operand(o_.m, o_.k, o_.transpose_a, true);
    problem.b = operand(o_.k, o_.n, o_.transpose_b, true);
    return problem;
  }

  AttentionProblem attention() const {
    const std::int64_t kv_heads = o_.kv_heads ? o_.kv_heads : o_.heads;
    const std::int64_t kv_length = o_.kv_length ? o_.kv_length : o_.q_length;
    const std::int64_t dim_v = o_.dim_v ? o_.dim_v : o_.dim;
    const DType kv_dtype = o_.kv_dtype.empty() ? dtype_ : parse_dtype(o_.kv_dtype);
    AttentionProblem problem;
    problem.q = rows(dtype_, o_.q_length, o_.heads, o_.dim);
    problem.out = rows(out_, o_.q_length, o_.heads, dim_v);
    if (o_.page > 0) {
      const std::int64_t pages = ceil_div(kv_length, o_.page);
      problem.k = make(kv_dtype, {multiply(o_.batch, pages), o_.page, kv_heads, o_.dim});
      problem.v = make(kv_dtype, {multiply(o_.batch, pages), o_.page, kv_heads, dim_v});
      problem.page_table = make(DType::i32, {o_.batch, pages});
      problem.kv_end = make(DType::i32, {o_.batch});
    } else {
      problem.k = rows(kv_dtype, kv_length, kv_heads, o_.dim);
      problem.v = rows(kv_dtype, kv_length, kv_heads, dim_v);
      if (o_.packed) problem.kv_offsets = make(DType::i32, {o_.batch + 1});
    }
    if (o_.packed) {
      problem.q_offsets = make(DType::i32, {o_.batch + 1});
      problem.max_q_length = o_.q_length;
      problem.max_kv_length = kv_length;
    }
    if (kv_dtype == DType::e4m3) problem.k_scale = problem.v_scale = make(DType::f32, {1});
    if (o_.lse) problem.lse = lse();
    problem.batch_invariant = o_.batch_invariant;
    if (o_.sinks) problem.sinks = make(DType::f32, {o_.heads});
    problem.softcap = static_cast<float>(o_.softcap);
    problem.causal = o_.causal;
    problem.window_left = o_.window_left;
    problem.window_right = o_.window_right;
    if (masked()) problem.mask = mask(kv_length);
    return problem;
  }

  AttentionBackwardProblem attention_backward() const {
    AttentionBackwardProblem problem;
    problem.forward = attention();
    problem.forward.lse = lse();
    problem.dout = problem.forward.out;
    problem.dq = problem.forward.q;
    problem.dk = problem.forward.k;
    problem.dv = problem.forward.v;
    problem.deterministic = !o_.any_order;
    return problem;
  }

  MergeStatesProblem merge_states() const {
    MergeStatesProblem problem;
    for (std::int64_t part = 0; part < o_.parts; ++part) {
      problem.outs.push_back(make(dtype_, {o_.batch, o_.q_length, o_.heads, o_.dim}));
      problem.lses.push_back(make(DType::f32, {o_.batch, o_.heads, o_.q_length}));
    }
    problem.out = make(out_, {o_.batch, o_.q_length, o_.heads, o_.dim});
    problem.lse = make(DType::f32, {o_.batch, o_.heads, o_.q_length});
    return problem;
  }

 private:
  static std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0); }

  static std::int64_t multiply(std::int64_t a, std::int64_t b) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) throw UsageError("explain: sizes overflow 64 bits");
    return product;
  }

  std::int64_t listed(std::int64_t blocks) const {
    const double share = o_.density.value_or(0.1);
    if (!(share >= 0)) throw UsageError("explain: --density: expected a number from 0 to 1");
    if (share >= 1) return blocks;
    return static_cast<std::int64_t>(share * static_cast<double>(blocks) + 0.5);
  }

  Tensor make(DType dtype, Shape shape) const { return tensor(nullptr, dtype, shape, device_); }

  // Queries or keys of all sequences, dense or packed.
  Tensor rows(DType dtype, std::int64_t length, std::int64_t heads, std::int64_t dim) const {
    return o_.packed ? make(dtype, {multiply(o_.batch, length), heads, dim})
                     : make(dtype, {o_.batch, length, heads, dim});
  }

  Tensor lse() const {
    return o_.packed ? make(DType::f32, {o_.heads, multiply(o_.batch, o_.q_length)})
                     : make(DType::f32, {o_.batch, o_.heads, o_.q_length});
  }

  Tensor dense(DType dtype, std::int64_t rows, std::int64_t cols) const {
    return o_.batch == 1 ? make(dtype, {rows, cols}) : make(dtype, {o_.batch, rows, cols});
  }

  // An operand of rows x cols; if transposed, it is stored as cols x rows.
  Operand operand(std::int64_t rows, std::int64_t cols, bool transposed, bool sparse) const {
    if (transposed) std::swap(rows, cols);
    Operand result = sparse ? Operand(bsr(rows, cols)) : Operand(dense(dtype_, rows, cols));
    result.transposed = transposed;
    return result;
  }

  BsrMatrix bsr(std::int64_t rows, std::int64_t cols) const {
    const std::int64_t r = o_.block;
    const std::int64_t c = o_.block_cols ? o_.block_cols : o_.block;
    const std::int64_t stored = listed(multiply(rows / r, cols / c));
    return {make(dtype_, {stored, r, c}), make(DType::i32, {rows / r + 1}),
            make(DType::i32, {stored}), rows, cols};
  }

  bool masked() const { return o_.density || o_.block_q || o_.block_kv; }

  BlockMask mask(std::int64_t kv_length) const {
    BlockMask result;
    const std::int64_t block = o_.block_q ? o_.block_q : o_.block_kv ? o_.block_kv : 64;
    result.block_q = block;
    result.block_kv = o_.block_kv ? o_.block_kv : block;
    const std::int64_t rows = ceil_div(o_.q_length, result.block_q);
    const std::int64_t capacity = listed(ceil_div(kv_length, result.block_kv));
    result.full.counts = make(DType::i32, {1, 1, rows});
    result.full.indices = make(DType::i32, {1, 1, rows, capacity});
    return result;
  }

  const ShapeOptions& o_;
  Device device_;
  DType dtype_, out_;
};

}  // namespace

const std::vector<std::string>& op_names() {
  static const std::vector<std::string> names{
      "attention", "attention_backward", "matmul", "bsr_matmul", "sddmm", "spgemm", "merge_states"};
  return names;
}

AnyProblem make_problem(const std::string& op, const ShapeOptions& options, DeviceKind device) {
  const Maker maker(options, device);
  if (op == "attention") return maker.attention();
  if (op == "attention_backward") return maker.attention_backward();
  if (op == "matmul") return maker.matmul(false);
  if (op == "bsr_matmul") return maker.matmul(true);
  if (op == "sddmm") return maker.sddmm();
  if (op == "spgemm") return maker.spgemm();
  if (op == "merge_states") return maker.merge_states();
  throw UsageError("unknown operation " + op);
}

}  // namespace tessera::tool
