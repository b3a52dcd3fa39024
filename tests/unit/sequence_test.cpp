// Where the sequences of an attention problem lie and what their queries see, against brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "src/walk/sequence.hpp"

namespace {

using namespace tessera;            // NOLINT: the test uses many names
using namespace tessera::planning;  // NOLINT

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

/// A list of i32 or i64 in memory of its own, with a stride. Invalid values fill the gaps.
class List {
 public:
  List() = default;
  List(const std::vector<std::int64_t>& values, DType dtype, std::int64_t stride)
      : values_(values) {
    const auto size = static_cast<std::int64_t>(values.size());
    wide_.assign(values.size() * static_cast<std::size_t>(stride) + 1, kMax);
    narrow_.assign(wide_.size(), -7);
    for (std::int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<std::size_t>(i * stride);
      wide_[at] = values[static_cast<std::size_t>(i)];
      narrow_[at] = static_cast<std::int32_t>(wide_[at]);
    }
    void* data = dtype == DType::i64 ? static_cast<void*>(wide_.data()) : narrow_.data();
    tensor_ = tensor(data, dtype, {size}, {stride});
  }

  const Tensor& view() const { return tensor_; }
  std::int64_t at(std::int64_t index, std::int64_t otherwise) const {
    return tensor_ ? values_[static_cast<std::size_t>(index)] : otherwise;
  }

 private:
  std::vector<std::int64_t> values_, wide_;
  std::vector<std::int32_t> narrow_;
  Tensor tensor_{};
};

/// A problem's lists and sizes, drawn by a seed.
struct Drawn {
  std::mt19937 random;
  std::int64_t batch, q_length, kv_length, q_total = 0, kv_total = 0;
  List q_offsets, kv_offsets, kv_begin, kv_end, q_position, kv_position;
  std::int64_t left = -1, right = -1;

  explicit Drawn(unsigned seed) : random(seed) {
    batch = 1 + below(5), q_length = below(20), kv_length = below(30);
  }

  std::int64_t below(std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(random);
  }
  bool chance() { return below(2) == 0; }
  List list(const std::vector<std::int64_t>& values) {
    return {values, chance() ? DType::i32 : DType::i64, 1 + below(3)};
  }
  List each(std::int64_t least, std::int64_t end) {
    std::vector<std::int64_t> values;
    for (std::int64_t b = 0; b < batch; ++b) values.push_back(least + below(end - least));
    return list(values);
  }
  List offsets(std::int64_t longest, std::int64_t& total) {
    std::vector<std::int64_t> values{chance() ? 0 : below(4)};
    for (std::int64_t b = 0; b < batch; ++b) values.push_back(values.back() + below(longest + 1));
    total = values.back() + below(4);
    return list(values);
  }
  void fill() {
    q_total = batch * q_length, kv_total = batch * kv_length;
    if (chance()) q_offsets = offsets(20, q_total);
    if (chance()) kv_offsets = offsets(30, kv_total);
    // Ranges of used keys lie inside their sequence.
    if (chance()) kv_begin = within();
    if (chance()) kv_end = within();
    if (chance()) q_position = each(-20, 40);
    if (chance()) kv_position = each(-20, 40);
    if (chance()) left = below(12);
    if (chance()) right = chance() ? 0 : below(12);
  }

  std::int64_t keys(std::int64_t b) const {
    return kv_offsets.view() ? kv_offsets.at(b + 1, 0) - kv_offsets.at(b, 0) : kv_length;
  }
  std::int64_t queries(std::int64_t b) const {
    return q_offsets.view() ? q_offsets.at(b + 1, 0) - q_offsets.at(b, 0) : q_length;
  }
  bool sees(std::int64_t b, std::int64_t i, std::int64_t j) const {
    const std::int64_t end = kv_end.at(b, keys(b));
    const std::int64_t key = kv_position.at(b, 0) + j;
    const std::int64_t query =
        i + q_position.at(b, kv_position.at(b, 0) + end - queries(b));  // bottom-right
    return j >= kv_begin.at(b, 0) && j < end && (left < 0 || key - query >= -left) &&
           (right < 0 || key - query <= right);
  }

  SequenceView view() const {
    AttentionProblem problem;
    problem.q_offsets = q_offsets.view(), problem.kv_offsets = kv_offsets.view();
    problem.kv_begin = kv_begin.view(), problem.kv_end = kv_end.view();
    problem.q_position = q_position.view(), problem.kv_position = kv_position.view();
    AttentionShape shape;
    shape.q_length = q_length, shape.kv_length = kv_length;
    shape.q_total = q_total, shape.kv_total = kv_total;
    shape.window_left = left, shape.window_right = right;
    return sequences_of(problem, shape);
  }

 private:
  List within() {
    std::vector<std::int64_t> values;
    for (std::int64_t b = 0; b < batch; ++b) values.push_back(below(keys(b) + 1));
    return list(values);
  }
};

TEST(SequenceView, MatchesBruteForce) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Drawn d(seed);
    d.fill();
    const SequenceView view = d.view();
    for (std::int64_t b = 0; b < d.batch; ++b) {
      const Sequence s = view.at(b);
      ASSERT_EQ(s.batch, b);
      ASSERT_EQ(s.q_begin, d.q_offsets.at(b, 0));
      ASSERT_EQ(s.kv_begin, d.kv_offsets.at(b, 0));
      ASSERT_EQ(s.q_length, d.queries(b));
      ASSERT_EQ(s.kv_length, d.keys(b));
      for (std::int64_t i = 0; i < s.q_length; ++i) {
        const KeyRange seen = s.sight.of_row(i);
        for (std::int64_t j = 0; j < s.kv_length; ++j)
          ASSERT_EQ(j >= seen.begin && j < seen.end, d.sees(b, i, j)) << b << " " << i << " " << j;
      }
      // A tile of queries: `of_any` contains the keys that any of its queries sees, and every query
      // sees the keys of `of_all`.
      for (std::int64_t first = 0; first < s.q_length; first += 4) {
        const std::int64_t last = std::min(first + 4, s.q_length) - 1;
        const KeyRange any = s.sight.of_any(first, last), all = s.sight.of_all(first, last);
        for (std::int64_t i = first; i <= last; ++i)
          for (std::int64_t j = 0; j < s.kv_length; ++j) {
            if (d.sees(b, i, j)) {
              ASSERT_TRUE(j >= any.begin && j < any.end);
            }
            if (j >= all.begin && j < all.end) {
              ASSERT_TRUE(d.sees(b, i, j));
            }
          }
      }
    }
  }
}

/// Lists that have not been checked never lead outside the tensors.
void check_inside(const SequenceView& view, std::int64_t batch) {
  for (std::int64_t b = 0; b < batch; ++b) {
    const Sequence s = view.at(b);
    ASSERT_GE(s.q_begin, 0);
    ASSERT_GE(s.q_length, 0);
    if (view.q_offsets.values) {
      ASSERT_LE(s.q_begin + s.q_length, view.q_total);
    }
    ASSERT_GE(s.kv_begin, 0);
    ASSERT_GE(s.kv_length, 0);
    if (view.kv_offsets.values) {
      ASSERT_LE(s.kv_begin + s.kv_length, view.kv_total);
    }
    for (std::int64_t i = 0; i < s.q_length; ++i) {
      const KeyRange seen = s.sight.of_row(i);
      if (seen.empty()) continue;
      ASSERT_GE(seen.begin, 0);
      ASSERT_LE(seen.end, s.kv_length);
      const KeyRange any = s.sight.of_any(i, s.q_length - 1);
      if (any.empty()) continue;
      ASSERT_GE(any.begin, 0);
      ASSERT_LE(any.end, s.kv_length);
    }
  }
}

TEST(SequenceView, HostileListsStayInside) {
  const std::array<std::int64_t, 12> values = {
      kMin, kMin + 1, -1'000'000'000'000, -1, 0, 1, 7, 20, 31, 2'000'000'000, kMax - 1, kMax};
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Drawn d(seed);
    d.fill();
    const auto hostile = [&](std::int64_t size) {
      std::vector<std::int64_t> drawn;
      for (std::int64_t i = 0; i < size; ++i)
        drawn.push_back(values[static_cast<std::size_t>(d.below(values.size()))]);
      return d.list(drawn);
    };
    for (List* list : {&d.q_offsets, &d.kv_offsets})
      if (list->view() && d.chance()) *list = hostile(d.batch + 1);
    for (List* list : {&d.kv_begin, &d.kv_end, &d.q_position, &d.kv_position})
      if (d.chance()) *list = hostile(d.batch);
    check_inside(d.view(), d.batch);
  }
}

// A constant expression allows no overflow.
constexpr std::int64_t kFalling[] = {kMax, kMin}, kRising[] = {kMin, kMax};
constexpr SequenceView hostile_view(const std::int64_t* offsets, const std::int64_t* positions) {
  return {.q_offsets = {{nullptr, offsets}},
          .kv_offsets = {{nullptr, offsets}},
          .kv_begin = {{nullptr, offsets}},
          .kv_end = {{nullptr, positions}},
          .q_position = {{nullptr, positions}},
          .kv_position = {{nullptr, offsets}},
          .q_total = 100,
          .kv_total = 200,
          .window_left = 0,
          .window_right = 0};
}
constexpr bool rows_overflow_nothing(const Sequence& s) {
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1} << 30})
    (void)s.sight.of_any(row, row + 127), (void)s.sight.of_all(row, row + 127);
  return true;
}
static_assert(hostile_view(kFalling, kRising).at(0).q_length == 0);
static_assert(hostile_view(kRising, kFalling).at(0).q_length == 100);
static_assert(hostile_view(kRising, kFalling).at(0).kv_length == 200);
static_assert(rows_overflow_nothing(hostile_view(kFalling, kRising).at(0)));
static_assert(rows_overflow_nothing(hostile_view(kRising, kFalling).at(0)));
static_assert(rows_overflow_nothing(hostile_view(kRising, kRising).at(0)));

}  // namespace
