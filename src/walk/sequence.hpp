#pragma once

#include <cstdint>

#include <tessera/attention.hpp>

#include "src/problem/shape.hpp"
#include "src/walk/views.hpp"

// The sequences of an attention problem: where they are in memory, their lengths, and which keys
// their queries see.
namespace tessera::planning {

/// An optional list with one number per sequence.
struct SequenceList {
  Indices values;
  std::int64_t stride = 1;

  /// The number of a sequence; `otherwise` if the list is absent.
  TESSERA_HD constexpr std::int64_t at(std::int64_t index, std::int64_t otherwise) const {
    return values ? values[index * stride] : otherwise;
  }
};

struct Sequence {
  std::int64_t batch = 0;
  std::int64_t q_begin = 0, q_length = 0;  // q_begin, kv_begin: first row in packed tensors
  std::int64_t kv_begin = 0, kv_length = 0;
  Visibility sight;

  /// The transposed sequence, for walks over queries: queries and keys are exchanged, and the keys
  /// end at the last valid one. Kernels have to skip the keys before the first valid one.
  TESSERA_HD constexpr Sequence from_keys() const {
    return {batch, kv_begin, sight.used.end, q_begin, q_length, sight.from_keys(q_length)};
  }
};

/// The sequences as kernels read them. Like all walks, it is safe for unchecked lists: numbers are
/// clamped so that no access is outside of the tensors.
struct SequenceView {
  SequenceList q_offsets, kv_offsets, kv_begin, kv_end, q_position, kv_position;
  std::int64_t q_length = 0, kv_length = 0;  // of every sequence, without offsets
  std::int64_t q_total = 0, kv_total = 0;    // rows of packed tensors
  std::int64_t window_left = -1, window_right = -1;

  /// Whether any list is present, so that kernels have to read memory.
  bool lie_in_memory() const {
    return q_offsets.values || kv_offsets.values || kv_begin.values || kv_end.values ||
           q_position.values || kv_position.values;
  }
  TESSERA_HD constexpr Sequence at(std::int64_t batch) const {
    Sequence s;
    s.batch = batch;
    s.q_length = q_length;
    s.kv_length = kv_length;
    if (q_offsets.values) {
      s.q_begin = clamp_to(q_offsets.at(batch, 0), 0, q_total);
      s.q_length = clamp_to(q_offsets.at(batch + 1, 0), s.q_begin, q_total) - s.q_begin;
    }
    if (kv_offsets.values) {
      s.kv_begin = clamp_to(kv_offsets.at(batch, 0), 0, kv_total);
      s.kv_length = clamp_to(kv_offsets.at(batch + 1, 0), s.kv_begin, kv_total) - s.kv_begin;
    }
    // Clamps positions so that sums of positions and lengths do not overflow.
    constexpr std::int64_t kFarthest = std::int64_t{1} << 60;
    const std::int64_t end = clamp_to(kv_end.at(batch, s.kv_length), 0, s.kv_length);
    s.sight.used = {clamp_to(kv_begin.at(batch, 0), 0, s.kv_length), end};
    s.sight.kv_position = clamp_to(kv_position.at(batch, 0), -kFarthest, kFarthest);
    s.sight.q_position = clamp_to(q_position.at(batch, s.sight.kv_position + end - s.q_length),
                                  -2 * kFarthest, 2 * kFarthest);
    s.sight.window_left = window_left;
    s.sight.window_right = window_right;
    return s;
  }
};

inline SequenceList sequence_list(const Tensor& list) {
  return list ? SequenceList{indices_of(list), list.stride(0)} : SequenceList{};
}

inline SequenceView sequences_of(const AttentionProblem& problem, const AttentionShape& shape) {
  return {.q_offsets = sequence_list(problem.q_offsets),
          .kv_offsets = sequence_list(problem.kv_offsets),
          .kv_begin = sequence_list(problem.kv_begin),
          .kv_end = sequence_list(problem.kv_end),
          .q_position = sequence_list(problem.q_position),
          .kv_position = sequence_list(problem.kv_position),
          .q_length = shape.q_length,
          .kv_length = shape.kv_length,
          .q_total = shape.q_total,
          .kv_total = shape.kv_total,
          .window_left = shape.window_left,
          .window_right = shape.window_right};
}

}  // namespace tessera::planning
