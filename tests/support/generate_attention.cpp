#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/support/generate.hpp"
#include "tests/support/oracle_attention.hpp"

namespace tessera::generate {
namespace {

using oracle::AttentionInputs;
using oracle::DenseArray;
using Integers = std::vector<std::int64_t>;

DType float_type(Random& random) { return random.pick({DType::f32, DType::f16, DType::bf16}); }
DType index_type(Random& random) { return random.pick({DType::i32, DType::i64}); }
std::size_t index_of(std::int64_t i) { return static_cast<std::size_t>(i); }

bool draw(Random& random, Presence presence, double probability) {
  if (presence == Presence::maybe) return random.chance(probability);
  return presence == Presence::always;
}

std::int64_t length(Random& random, std::int64_t longest) {
  if (random.chance(0.08)) return 0;
  if (random.chance(0.12)) return 1;
  return random.between(1, longest);
}

/// Builds one attention problem step by step. Members hold the choices so far.
class Builder {
 public:
  Builder(Random& random, Memory& memory, const AttentionOptions& options,
          AttentionProblem& problem)
      : random_(random), memory_(memory), options_(options), p_(problem) {}

  void build() {
    draw_sizes();
    make_queries();
    make_keys();
    draw_parameters();
    if (draw(random_, options_.mask, 0.5)) {
      // With packed sequences, a mask requires their max lengths.
      if (batch_ > 1) {
        if (p_.q_offsets) p_.max_q_length = longest_between(p_.q_offsets, p_.q.size(0));
        if (p_.kv_offsets) p_.max_kv_length = longest_between(p_.kv_offsets, p_.k.size(0));
      }
      const std::int64_t kv_bound = p_.max_kv_length ? p_.max_kv_length
                                    : p_.kv_offsets  ? p_.k.size(0)
                                    : p_.page_table  ? p_.page_table.size(1) * p_.k.size(1)
                                                     : p_.k.size(1);
      const std::int64_t q_bound = p_.max_q_length ? p_.max_q_length
                                   : p_.q_offsets  ? p_.q.size(0)
                                                   : p_.q.size(1);
      p_.mask = wild_mask(random_, memory_, batch_, heads_, kv_heads_, q_bound, kv_bound,
                          options_.blocks);
      if (options_.bad_values) p_.mask.bit_tile = p_.mask.bits = {};
    }
    fill();
  }

 private:
  void draw_sizes() {
    batch_ = random_.chance(0.02) ? 0 : random_.between(1, options_.largest_batch);
    kv_heads_ = random_.between(1, options_.largest_kv_heads);
    const std::int64_t group = random_.pick({1, 1, 2, 3, 4});
    heads_ = kv_heads_ * (options_.group > 0 ? options_.group : group);
    static const Integers kUsual = {1, 2, 3, 8, 16, 17, 32, 40, 64};
    const Integers& dims = options_.dims.empty() ? kUsual : options_.dims;
    const auto pick = [&] {
      return dims[index_of(random_.between(0, static_cast<std::int64_t>(dims.size()) - 1))];
    };
    dim_ = pick();
    dim_v_ = random_.chance(0.6) ? dim_ : pick();
    dtype_ = options_.dtype.value_or(float_type(random_));
  }

  Tensor list(const Integers& values) {
    return memory_.list(index_type(random_), {static_cast<std::int64_t>(values.size())}, values);
  }

  Integers draw_lengths() {
    Integers lengths;
    for (std::int64_t b = 0; b < batch_; ++b) lengths.push_back(length(random_, options_.longest));
    return lengths;
  }

  static Integers offsets_of(const Integers& lengths) {
    Integers offsets{0};
    for (std::int64_t n : lengths) offsets.push_back(offsets.back() + n);
    return offsets;
  }

  static std::int64_t longest_of(const Integers& lengths) {
    return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  }

  /// Rows of packed tensors after the last sequence.
  std::int64_t draw_rest() { return random_.chance(0.3) ? random_.between(1, 9) : 0; }

  /// The longest sequence; at least 1 if there is a row, as 0 means "not known".
  static std::int64_t longest_between(const Tensor& offsets, std::int64_t total) {
    const DenseArray values = oracle::read(offsets);
    std::int64_t longest = std::min<std::int64_t>(total, 1);
    for (std::size_t i = 1; i < values.values.size(); ++i)
      longest =
          std::max(longest, static_cast<std::int64_t>(values.values[i] - values.values[i - 1]));
    return longest;
  }

  void make_queries() {
    Integers shape;
    if (draw(random_, options_.packed_q, 0.3)) {
      const Integers lengths = draw_lengths();
      const Integers offsets = offsets_of(lengths);
      p_.q_offsets = list(offsets);
      if (random_.chance(0.5)) p_.max_q_length = longest_of(lengths);
      shape = {offsets.back() + draw_rest(), heads_, dim_};
    } else {
      const std::int64_t most = options_.max_queries > 0 ? options_.max_queries : options_.longest;
      shape = {batch_, length(random_, most), heads_, dim_};
    }
    p_.q = memory_.input(dtype_, shape, options_.layout);
    const DType usual = dtype_ == DType::e4m3 ? DType::bf16 : dtype_;
    const DType out = options_.wide_out && random_.chance(0.2) ? DType::f32 : usual;
    shape.back() = dim_v_;
    p_.out = memory_.output(out, shape, options_.layout);
    if (random_.chance(0.7)) p_.lse = memory_.output(DType::f32, lse_shape(), options_.layout);
  }

 public:
  Integers lse_shape() const {
    if (p_.q_offsets) return {heads_, p_.q.size(0)};
    return {batch_, heads_, p_.q.size(1)};
  }

 private:
  void make_keys() {
    Integers shape;
    const bool paged = draw(random_, options_.paged, 0.25);
    if (paged) {
      make_pages(shape);
    } else if (draw(random_, options_.packed_kv, 0.3)) {
      kv_lengths_ = draw_lengths();
      const Integers offsets = offsets_of(kv_lengths_);
      p_.kv_offsets = list(offsets);
      if (random_.chance(0.5)) p_.max_kv_length = longest_of(kv_lengths_);
      shape = {offsets.back() + draw_rest(), kv_heads_};
    } else {
      kv_lengths_.assign(index_of(batch_), length(random_, options_.longest));
      const std::int64_t rows = batch_ ? kv_lengths_[0] : 5;
      shape = {batch_, rows, kv_heads_};
    }
    shape.push_back(dim_);
    const bool narrow = draw(random_, options_.narrow_keys, 0.5);
    const DType dtype = narrow ? DType::e4m3 : dtype_;
    p_.k = memory_.input(dtype, shape, options_.layout);
    shape.back() = dim_v_;
    const bool by_keys = !paged && draw(random_, options_.v_by_keys, 0.5);
    p_.v = by_keys ? values_by_keys(dtype, shape) : memory_.input(dtype, shape, options_.layout);
    if (dtype == DType::e4m3) p_.k_scale = scale_for(p_.k), p_.v_scale = scale_for(p_.v);
    if (dtype_ == DType::e4m3) p_.q_scale = scale_for(p_.q);
    if (paged || (options_.positions != Presence::never && random_.chance(0.3))) draw_ranges(paged);
  }

  /// Values of [.., length, heads, dim] whose length is contiguous.
  Tensor values_by_keys(DType dtype, const Integers& shape) {
    Integers lines = shape;
    std::rotate(lines.end() - 3, lines.end() - 2, lines.end());
    Tensor v = memory_.input(dtype, lines, options_.layout);
    std::copy(shape.begin(), shape.end(), v.shape.begin());
    const auto end = v.strides.begin() + v.rank;
    std::rotate(end - 3, end - 1, end);
    return v;
  }

  /// Per page (or sequence) and head, these for 64 or 128 rows, per head, for all, or none.
  Tensor scale_for(const Tensor& rows) {
    const int kind = static_cast<int>(random_.between(0, 4));
    if (kind == 0) return {};
    Integers shape = {kind == 1 ? 1 : rows.size(rows.rank - 2)};
    if (kind >= 3 && rows.rank == 4) shape.insert(shape.begin(), rows.size(0));
    const std::int64_t each = random_.pick<std::int64_t>({64, 128});
    if (kind == 4) shape.push_back((rows.size(rows.rank - 3) + each - 1) / each);
    const Tensor scale = memory_.input(DType::f32, shape, options_.layout);
    DenseArray values = oracle::read(scale);
    for (double& value : values.values) value = std::exp(random_.normal() / 2);
    if (repeats(scale)) std::fill(values.values.begin(), values.values.end(), 0.75);
    oracle::write(scale, values);
    return scale;
  }

  void make_pages(Integers& shape) {
    kv_lengths_ = draw_lengths();
    const std::int64_t page =
        options_.page > 0 ? options_.page : random_.pick({1, 2, 3, 8, 16, 32});
    const std::int64_t max_pages =
        (longest_of(kv_lengths_) + page - 1) / page + random_.between(0, 2);
    std::int64_t used = 0;
    for (std::int64_t n : kv_lengths_) used += (n + page - 1) / page;
    const std::int64_t pages = used + random_.between(0, 3);
    Integers pool(index_of(pages));
    std::iota(pool.begin(), pool.end(), std::int64_t{0});
    random_.shuffle(pool);
    Integers table;
    for (std::int64_t n : kv_lengths_) {
      for (std::int64_t t = 0; t < max_pages; ++t) {
        const bool needed = t * page < n;
        table.push_back(needed ? pool.back() : -1);
        if (needed) pool.pop_back();
      }
    }
    p_.page_table = memory_.list(DType::i32, {batch_, max_pages}, table);
    shape = {pages, page, kv_heads_};
  }

  void draw_ranges(bool paged) {
    Integers begins, ends;
    for (std::int64_t n : kv_lengths_) {
      ends.push_back(paged ? n : random_.between(0, n));
      begins.push_back(random_.chance(0.6) ? 0 : random_.between(0, ends.back()));
    }
    p_.kv_end = list(ends);
    if (random_.chance(0.6)) p_.kv_begin = list(begins);
  }

  void draw_parameters() {
    if (random_.chance(0.3)) {
      const double scale = random_.normal();
      // Scores far apart make a small P zero, and zero times infinity is NaN.
      if (!options_.bad_values) p_.scale = static_cast<float>(scale);
    }
    if (draw(random_, options_.softcap, 0.3)) {
      p_.softcap = static_cast<float>(random_.pick({0.5, 2.0, 10.0, 30.0}));
    }
    if (draw(random_, options_.sinks, 0.3)) {
      p_.sinks = memory_.input(float_type(random_), {heads_}, options_.layout);
      memory_.fill_normal(p_.sinks);
    }
    if (options_.positions == Presence::never) return;
    p_.causal = draw(random_, options_.positions, 0.4);
    const std::int64_t narrow = options_.longest_window;
    const std::int64_t widest = narrow > 0 ? narrow : options_.longest;
    if (narrow > 0 || random_.chance(0.3)) p_.window_left = random_.between(0, widest);
    if (narrow > 0 || random_.chance(0.2)) p_.window_right = random_.between(0, widest);
    const auto positions = [&] {
      Integers values;
      for (std::int64_t b = 0; b < batch_; ++b) {
        values.push_back(random_.between(-10, options_.longest + 10));
      }
      return list(values);
    };
    if (random_.chance(0.3)) p_.q_position = positions();
    if (random_.chance(0.3)) p_.kv_position = positions();
  }

  /// Writes normal values to the wanted rows, NaN to the others.
  void fill_rows(const Tensor& tensor, const std::vector<char>& wanted) {
    if (repeats(tensor)) return memory_.fill_normal(tensor);
    DenseArray array = oracle::read(tensor);
    const auto width = index_of(tensor.size(tensor.rank - 1));
    for (std::size_t at = 0; at < array.values.size(); ++at) {
      array.values[at] = wanted[at / width] ? random_.normal() : std::nan("");
    }
    oracle::write(tensor, array);
  }

  /// Fills keys with numbers if some query of the head may see them by position, range and lists,
  /// else with NaN. Bits do not matter: keys that bits hide are read with their block.
  void fill() {
    AttentionProblem without_bits = p_;
    without_bits.mask.bit_tile = without_bits.mask.bits = {};
    const AttentionInputs in(without_bits);
    std::vector<char> met(index_of(p_.k.numel() / dim_), 0);
    std::vector<char> sees(index_of(p_.q.numel() / dim_), random_.chance(0.5));
    for (std::int64_t b = 0; b < batch_; ++b) {
      const oracle::Sequence& sequence = in.sequences[index_of(b)];
      for (std::int64_t h = 0; h < heads_; ++h) {
        for (std::int64_t i = 0; i < sequence.q_length; ++i) {
          for (std::int64_t j = 0; j < sequence.kv_length; ++j) {
            if (!oracle::visible(without_bits, b, h, i, j)) continue;
            met[index_of(in.kv_row(b, h, j))] = 1;
            sees[index_of(in.q_row(b, h, i))] = 1;
          }
        }
      }
    }
    fill_rows(p_.q, sees);
    fill_rows(p_.k, met);
    fill_rows(p_.v, met);
    if (options_.bad_values) spoil();
    if (options_.saturating) {
      change(p_.q, [](std::int64_t, double x) { return std::fabs(x); });
      change(p_.k, [](std::int64_t key, double x) {
        return std::ldexp(std::fabs(x), key < 192 ? -7 : 0);
      });
    }
    // The factor is limited to 2^10, so that keys stay in f16's range.
    if (options_.rising)
      change(p_.k, [](std::int64_t key, double x) {
        return std::ldexp(x, static_cast<int>(std::min<std::int64_t>(key / 64, 10)));
      });
  }

  /// Changes values by a function of their position along the length (or in the page) and value.
  void change(const Tensor& tensor, const std::function<double(std::int64_t, double)>& changed) {
    DenseArray array = oracle::read(tensor);
    const int axis = tensor.rank - 3;
    const std::int64_t length = tensor.size(axis);
    const std::int64_t inner = tensor.size(axis + 1) * tensor.size(axis + 2);
    for (std::size_t at = 0; at < array.values.size(); ++at)
      array.values[at] = changed(static_cast<std::int64_t>(at) / inner % length, array.values[at]);
    oracle::write(tensor, array);
  }

  void spoil() {
    const auto put = [&](const Tensor& tensor, double value) {
      DenseArray array = oracle::read(tensor);
      if (array.empty()) return;
      const auto at = random_.between(0, static_cast<std::int64_t>(array.values.size()) - 1);
      array.values[index_of(at)] = value;
      oracle::write(tensor, array);
    };
    for (std::int64_t n = random_.between(1, 3); n > 0; --n) {
      const int where = static_cast<int>(random_.between(0, 3));
      if (where == 0) put(p_.q, std::nan(""));
      if (where == 1) put(p_.k, std::nan(""));
      if (where == 2) put(p_.v, std::nan(""));
      if (where == 3) put(p_.v, random_.chance(0.5) ? HUGE_VAL : -HUGE_VAL);
    }
  }

  Random& random_;
  Memory& memory_;
  const AttentionOptions& options_;
  AttentionProblem& p_;
  std::int64_t batch_ = 0, heads_ = 0, kv_heads_ = 0, dim_ = 0, dim_v_ = 0;
  DType dtype_ = DType::f32;
  Integers kv_lengths_;
};

Tensor like(Memory& memory, const Tensor& tensor, DType dtype, Layout layout, bool output) {
  const Integers shape(tensor.shape.begin(), tensor.shape.begin() + tensor.rank);
  return output ? memory.output(dtype, shape, layout) : memory.input(dtype, shape, layout);
}

}  // namespace

std::unique_ptr<Case<AttentionProblem>> attention_case(std::uint64_t seed,
                                                       const AttentionOptions& options) {
  auto made = std::make_unique<Case<AttentionProblem>>(seed);
  made->text = "attention_case(" + std::to_string(seed) + ")";
  Builder(made->random, made->memory, options, made->problem).build();
  return made;
}

std::unique_ptr<Case<AttentionBackwardProblem>> backward_case(std::uint64_t seed,
                                                              const AttentionOptions& options) {
  auto made = std::make_unique<Case<AttentionBackwardProblem>>(seed);
  Case<AttentionBackwardProblem>& c = *made;
  c.text = "backward_case(" + std::to_string(seed) + ")";
  Random& random = c.random;
  AttentionProblem& forward = c.problem.forward;
  AttentionOptions dense = options;
  dense.paged = Presence::never;
  Builder builder(random, c.memory, dense, forward);
  builder.build();
  // The outputs of the forward pass are inputs here.
  const Layout layout = options.layout;
  forward.out = like(c.memory, forward.out, forward.out.dtype, Layout::contiguous, false);
  forward.lse = c.memory.input(DType::f32, builder.lse_shape(), Layout::contiguous);
  const oracle::Attention result = oracle::attention(forward);
  oracle::write(forward.out, result.out);
  oracle::write(forward.lse, result.lse);

  c.problem.dout = like(c.memory, forward.out, forward.out.dtype, layout, false);
  c.memory.fill_normal(c.problem.dout);
  if (random.chance(0.4)) {
    c.problem.dlse = like(c.memory, forward.lse, DType::f32, layout, false);
    c.memory.fill_normal(c.problem.dlse);
  }
  const auto gradient = [&](const Tensor& of) {
    const DType dtype = random.chance(0.8) ? of.dtype : DType::f32;
    return like(c.memory, of, dtype, layout, true);
  };
  const int wanted = random.chance(0.6) ? 7 : static_cast<int>(random.between(0, 7));
  if (wanted & 1) c.problem.dq = gradient(forward.q);
  if (wanted & 2) c.problem.dk = gradient(forward.k);
  if (wanted & 4) c.problem.dv = gradient(forward.v);
  if (forward.sinks && random.chance(0.8)) {
    c.problem.dsinks = like(c.memory, forward.sinks, DType::f32, layout, true);
  }
  return made;
}

std::unique_ptr<MergeCase> merge_case(std::uint64_t seed) {
  auto made = std::make_unique<MergeCase>(seed);
  MergeCase& c = *made;
  Random& random = c.random;
  MergeStatesProblem& problem = c.problem;
  c.text = "merge_case(" + std::to_string(seed) + ")";
  const bool packed = random.chance(0.4);
  const std::int64_t batch = random.between(1, 3), heads = random.between(1, 4);
  const std::int64_t rows = length(random, 40), dim = random.between(1, 40);
  const Integers shape = packed ? Integers{rows, heads, dim} : Integers{batch, rows, heads, dim};
  const Integers lse_shape = packed ? Integers{heads, rows} : Integers{batch, heads, rows};
  const DType dtype = float_type(random);
  const std::int64_t parts = random.between(1, 4);
  const std::int64_t kept = random.between(0, parts - 1);
  const bool in_place = random.chance(0.3), lse_in_place = random.chance(0.3);
  const auto part = [&](DType type, const Integers& sizes, bool written) {
    return written ? c.memory.output(type, sizes, Layout::wild)
                   : c.memory.input(type, sizes, Layout::wild);
  };
  for (std::int64_t n = 0; n < parts; ++n) {
    problem.outs.push_back(part(dtype, shape, in_place && n == kept));
    problem.lses.push_back(part(DType::f32, lse_shape, lse_in_place && n == kept));
    DenseArray out(shape), lse(lse_shape);
    for (double& x : out.values) x = random.normal();
    const double offset = 10 * random.normal();
    for (double& x : lse.values) x = random.chance(0.15) ? -HUGE_VAL : offset + random.normal();
    oracle::write(problem.outs.back(), out);
    oracle::write(problem.lses.back(), lse);
  }
  problem.out = in_place ? problem.outs[index_of(kept)]
                         : c.memory.output(random.chance(0.7) ? dtype : float_type(random), shape,
                                           Layout::wild);
  if (lse_in_place) {
    problem.lse = problem.lses[index_of(kept)];
  } else if (random.chance(0.7)) {
    problem.lse = c.memory.output(DType::f32, lse_shape, Layout::wild);
  }
  if (random.chance(0.4)) {
    problem.sinks = c.memory.input(float_type(random), {heads}, Layout::wild);
    c.memory.fill_normal(problem.sinks);
  }
  c.expected = oracle::merge_states(problem);
  return made;
}

}  // namespace tessera::generate
