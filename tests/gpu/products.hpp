#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <tessera/tessera.hpp>

#include "tests/gpu/twin.hpp"
#include "tests/support/compare.hpp"
#include "tests/support/random.hpp"

namespace tessera::gpu_test {

using generate::Random;

/// Host tensors and their copies on the GPU, aligned to 16 bytes as TMA requires.
class Products {
 public:
  explicit Products(std::uint64_t seed, std::size_t megabytes = 6)
      : random_(seed), twin_(megabytes << 20) {}

  /// [rows, cols] or [batch, rows, cols], normal values; each row has `padding` more elements, of
  /// NaN.
  Tensor matrix(DType dtype, std::vector<std::int64_t> shape, std::int64_t padding = 0,
                bool poison = false) {
    const std::int64_t eight = 8;
    const std::int64_t cols = shape.back(), pitch = (cols + eight - 1) / eight * eight + padding;
    const std::int64_t rows = shape[shape.size() - 2];
    const std::int64_t batch = shape.size() == 3 ? shape[0] : 1;
    Tensor t = shape.size() == 3
                   ? tensor(nullptr, dtype, {batch, rows, cols}, {rows * pitch, pitch, 1})
                   : tensor(nullptr, dtype, {rows, cols}, {pitch, 1});
    const std::int64_t elements = batch * rows * pitch;
    t.data = aligned(dtype, elements);
    for (std::int64_t i = 0; i < elements; ++i) {
      const bool inside = i % pitch < cols && !poison;
      store_from_float(
          t.data, dtype, i,
          inside ? static_cast<float>(random_.normal()) : std::numeric_limits<float>::quiet_NaN());
    }
    return t;
  }

  BsrMatrix bsr(DType dtype, const Pattern& pattern, std::int64_t r, std::int64_t c, DType index) {
    HostBsr made = make_bsr(pattern, r, c, dtype, index);
    BsrMatrix m = made.view();
    for (Tensor* t : {&m.values, &m.row_offsets, &m.col_indices}) {
      const void* from = t->data;
      t->data = aligned(t->dtype, std::max<std::int64_t>(t->numel(), 1));
      if (t->numel() > 0)
        std::memcpy(t->data, from, static_cast<std::size_t>(t->numel() * size_of(t->dtype)));
    }
    for (std::int64_t i = 0; i < m.values.numel(); ++i)
      store_from_float(m.values.data, dtype, i, static_cast<float>(random_.normal()));
    return m;
  }

  /// A matrix with invalid lists (`as_given`), and the valid matrix that kernels should read from
  /// it
  /// (`as_read`), which has only the entries whose column exists. In `as_given`, the values of all
  /// other blocks are NaN.
  struct Hostile {
    BsrMatrix as_given, as_read;
  };
  /// Patterns of 3 x 4 blocks with offsets that decrease or lie outside, and invalid columns.
  static std::vector<Pattern> hostile_patterns(DType index) {
    constexpr std::int64_t kWide = std::int64_t{1} << 32;  // zero in the lower 32 bits
    const std::int64_t beyond = index == DType::i64 ? kWide : 1 << 30;
    std::vector<Pattern> patterns;
    for (const std::vector<std::int64_t>& offsets :
         {std::vector<std::int64_t>{-5, 1 << 30, 3, -7}, {7, 6, 2, 0}, {0, 2, 4, 7}})
      patterns.push_back({3, 4, offsets, {-1, beyond, 0, -beyond, 4, 2, 3}});
    return patterns;
  }
  Hostile hostile(DType dtype, DType index, const Pattern& pattern, std::int64_t r,
                  std::int64_t c) {
    const std::int64_t stored = pattern.stored();
    const auto clamped = [&](std::int64_t i) {
      return std::clamp(pattern.offsets[static_cast<std::size_t>(i)], std::int64_t{0}, stored);
    };
    Pattern whole{pattern.rows, pattern.cols, {0}, {}}, read = whole;
    std::vector<std::int64_t> taken;
    for (std::int64_t i = 0; i < pattern.rows; ++i) {
      for (std::int64_t e = clamped(i); e < clamped(i + 1); ++e) {
        const std::int64_t column = pattern.indices[static_cast<std::size_t>(e)];
        if (column < 0 || column >= pattern.cols) continue;
        read.indices.push_back(column);
        taken.push_back(e);
      }
      read.offsets.push_back(read.stored());
    }
    Hostile made;
    made.as_read = bsr(dtype, read, r, c, index);
    const std::int64_t each = r * c;
    BsrMatrix& given = made.as_given;
    given = made.as_read;
    given.values = tensor(aligned(dtype, stored * each), dtype, {stored, r, c});
    for (std::int64_t i = 0; i < stored * each; ++i)
      store_from_float(given.values.data, dtype, i, std::numeric_limits<float>::quiet_NaN());
    const auto bytes = static_cast<std::size_t>(each * size_of(dtype));
    for (std::size_t i = 0; i < taken.size(); ++i)
      std::memcpy(
          static_cast<char*>(given.values.data) + static_cast<std::size_t>(taken[i]) * bytes,
          static_cast<const char*>(made.as_read.values.data) + i * bytes, bytes);
    given.row_offsets = list(index, {pattern.rows + 1}, pattern.offsets);
    given.col_indices = list(index, {stored}, pattern.indices);
    return made;
  }

  Operand moved(const Operand& operand) const {
    Operand o = operand;
    o.dense = twin_.on_device(o.dense);
    o.scale = twin_.on_device(o.scale);
    for (Tensor* t : {&o.sparse.values, &o.sparse.row_offsets, &o.sparse.col_indices})
      *t = twin_.on_device(*t);
    return o;
  }

  /// Runs on the GPU by one of our Hopper kernels and compares the result with the oracle. Returns
  /// the bytes of all memory.
  std::string expect_right(const MatmulProblem& host, const std::string& text) {
    return expect_right(host, text, [](const MatmulProblem& device) {
      matmul(device, {.backend = Backend::sm90});
    });
  }

  MatmulProblem moved(const MatmulProblem& host) const {
    MatmulProblem device = host;
    device.a = moved(host.a);
    device.b = moved(host.b);
    device.out = twin_.on_device(host.out);
    device.epilogue.c = twin_.on_device(host.epilogue.c);
    device.epilogue.bias = twin_.on_device(host.epilogue.bias);
    device.group_offsets = twin_.on_device(host.group_offsets);
    return device;
  }

  /// Calls `call` with the problem on the GPU. Returns the bytes of all memory.
  template <class Call>
  std::vector<std::byte> run(const MatmulProblem& host, const Call& call) {
    const MatmulProblem device = moved(host);
    twin_.upload();
    call(device);
    gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return twin_.download();
  }
  static std::string text_of(const std::vector<std::byte>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  /// The same as the first, with the given call.
  template <class Call>
  std::string expect_right(const MatmulProblem& host, const std::string& text, const Call& call) {
    oracle::DenseArray former = oracle::read(host.out);
    std::vector<std::byte> copy;
    try {
      copy = run(host, call);
    } catch (const Error& error) {
      ADD_FAILURE() << text << ": refused: " << error.what();
      return {};
    }
    MatmulProblem answer = host;
    answer.out = twin_.inside(host.out, copy);
    const Tensor& left = host.a.is_sparse() ? host.a.sparse.values : host.a.dense;
    const bool fp8 = size_of(left.dtype) == 1;
    const oracle::Comparison result =
        oracle::check(answer, &former, fp8 ? oracle::Sums::fp8 : oracle::Sums::f32);
    EXPECT_TRUE(result.ok) << text << ": " << result.message;
    expect_untouched_outside(host.out, copy, text);
    return text_of(copy);
  }

  /// A list of either index dtype.
  Tensor list(DType dtype, std::vector<std::int64_t> shape,
              const std::vector<std::int64_t>& values) {
    const auto entries = static_cast<std::int64_t>(values.size());
    void* data = aligned(dtype, std::max<std::int64_t>(entries, 1));
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (dtype == DType::i64)
        static_cast<std::int64_t*>(data)[i] = values[i];
      else
        static_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(values[i]);
    }
    return shape.size() == 2 ? tensor(data, dtype, {shape[0], shape[1]})
                             : tensor(data, dtype, {shape[0]});
  }

  /// Runs on the GPU. Returns the bytes of all memory.
  std::vector<std::byte> run(const SddmmProblem& host) {
    SddmmProblem device = host;
    device.a = moved(host.a);
    device.b = moved(host.b);
    device.out = moved(Operand(host.out)).sparse;
    twin_.upload();
    sddmm(device);
    gpu_test::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return twin_.download();
  }

  std::string expect_right(const SddmmProblem& host, const std::string& text) {
    oracle::DenseArray former = oracle::read(host.out.values);
    std::vector<std::byte> copy;
    try {
      copy = run(host);
    } catch (const Error& error) {
      ADD_FAILURE() << text << ": refused: " << error.what();
      return {};
    }
    SddmmProblem answer = host;
    answer.out.values = twin_.inside(host.out.values, copy);
    const oracle::Comparison result = oracle::check(answer, &former);
    EXPECT_TRUE(result.ok) << text << ": " << result.message;
    expect_untouched_outside(host.out.values, copy, text);
    return text_of(copy);
  }

  /// Checks that all bytes outside the elements of `written` are unchanged.
  void expect_untouched_outside(const Tensor& written, std::vector<std::byte> copy,
                                const std::string& text) {
    const auto bytes = static_cast<std::size_t>(size_of(written.dtype));
    auto* now = static_cast<std::byte*>(twin_.inside(written, copy).data);
    const auto* then = static_cast<const std::byte*>(written.data);
    for (std::int64_t i = 0; i < written.numel(); ++i) {
      std::int64_t rest = i, at = 0;
      for (int dim = written.rank - 1; dim >= 0; --dim) {
        at += rest % written.size(dim) * written.stride(dim);
        rest /= written.size(dim);
      }
      std::memcpy(now + at * static_cast<std::int64_t>(bytes),
                  then + at * static_cast<std::int64_t>(bytes), bytes);
    }
    const auto differs = std::mismatch(copy.begin(), copy.end(), twin_.host().begin()).first;
    const auto* const first = static_cast<const std::byte*>(twin_.inside(written, copy).data);
    EXPECT_TRUE(differs == copy.end()) << text << ": memory outside the result differs, first "
                                       << &*differs - first << " bytes from its beginning";
  }

  Random& random() { return random_; }
  Twin& twin() { return twin_; }

 private:
  void* aligned(DType dtype, std::int64_t elements) {
    const std::int64_t slack = 16 / size_of(dtype);
    auto address = reinterpret_cast<std::uintptr_t>(twin_.carve(dtype, elements + slack));
    return reinterpret_cast<void*>((address + 15) / 16 * 16);
  }

  Random random_;
  Twin twin_;
};

/// Tests force Hopper's kernel rows, and some products have rows for no other GPU. Whether the GPU
/// is a Hopper and this build has kernels for it.
inline bool on_hopper() {
  const std::vector<Backend> built = built_backends();
  return std::find(built.begin(), built.end(), Backend::sm90) != built.end() &&
         device_facts({DeviceKind::cuda, 0}).compute_capability == 90;
}
#define SKIP_UNLESS_HOPPER()             \
  if (!::tessera::gpu_test::on_hopper()) \
  GTEST_SKIP() << "needs compute capability 9.0, and kernels for it"

/// Calls check(products, problem, text) for epilogues of all kinds on products of m rows and depth
/// k: results by row and by column, c and bias of different dtypes and layouts.
template <class Check>
void for_each_epilogue(std::int64_t m, std::int64_t k, const Check& check) {
  const Activation activations[] = {Activation::none, Activation::relu, Activation::gelu,
                                    Activation::gelu_tanh, Activation::silu};
  int kind = 0;
  for (DType out : {DType::bf16, DType::f16, DType::f32})
    for (bool columns : {false, true})
      for (Activation activation : activations) {
        ++kind;
        Products p(3);
        MatmulProblem problem;
        const std::int64_t n = kind % 2 ? 304 : 300;
        problem.a = p.matrix(DType::bf16, {m, k});
        problem.b = p.matrix(DType::bf16, {k, n});
        const auto result = [&](DType dtype, bool by_columns, bool poison) {
          return by_columns ? swap_dims(p.matrix(dtype, {n, m}, 0, poison), 0, 1)
                            : p.matrix(dtype, {m, n}, 0, poison);
        };
        Epilogue& e = problem.epilogue;
        e.activation = activation;
        e.alpha = kind % 3 ? 0.5f : 1.0f;
        problem.out = result(out, columns, true);
        if (kind % 4 < 2) {
          e.beta = -0.75f;
          e.c = result(kind % 4 ? DType::f32 : DType::bf16, kind % 5 ? columns : !columns, false);
        }
        if (kind % 3 < 2) {
          e.bias_axis = kind % 2 ? BiasAxis::row : BiasAxis::column;
          const std::int64_t length = kind % 2 ? m : n;
          const DType dtype = kind % 3 ? DType::f32 : DType::bf16;
          e.bias = tensor(p.matrix(dtype, {1, length}).data, dtype, {length});
        }
        check(p, problem, "kind " + std::to_string(kind));
      }
}

}  // namespace tessera::gpu_test
