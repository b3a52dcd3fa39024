#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/kernels/cpu/attention_view.hpp"
#include "src/kernels/cpu/layout.hpp"
#include "src/kernels/cpu/simd.hpp"

// Shared by forward and backward attention: the steps of a walk gathered into stages, a stage's
// rows prepared for multiplication, masking of scores.
namespace tessera::cpu {

/// The steps of a walk, gathered into stages. One stage is one step of the online softmax.
class Stages {
 public:
  /// `size`: maximum number of keys per stage.
  explicit Stages(std::int64_t size) : size_(size) {}
  std::int64_t size() const { return size_; }
  void clear() { steps_.clear(), next_ = 0, taken_ = 0; }
  void add(const planning::KeyStep& step) { steps_.push_back(step); }
  /// Writes the next stage to `stage`; false at the end. Long steps are split.
  bool next(std::vector<planning::KeyStep>& stage);

 private:
  std::int64_t size_;
  std::vector<planning::KeyStep> steps_;
  std::size_t next_ = 0;
  std::int64_t taken_ = 0;
};

/// The rows of keys, values or queries of a stage, as runs with one pitch.
struct StageRows {
  struct Run {
    const float* data;
    int first, count;  // rows of the stage
  };
  std::vector<Run> runs;
  std::int64_t row = 0, col = 1;

  /// Uses f32 rows in place; converts others into `scratch`.
  void load(const Simd& isa, const KeyRowsView& source, const std::vector<planning::KeyStep>& stage,
            std::int64_t dim, float* scratch);

  /// c[stage rows x lanes] = rows * right, right [dim x lanes].
  void times(const Simd& isa, const float* right, std::int64_t dim, int vectors, float* c) const;
  /// c[dim x lanes] += rows^T * right, right [stage rows x lanes].
  void transposed_times(const Simd& isa, const float* right, std::int64_t dim, int vectors,
                        float* c, std::vector<Segment>& segments) const;
};

/// The element masks of partial blocks.
struct BitTiles {
  const std::uint8_t* data = nullptr;
  std::int64_t tile = 0, row = 0, byte = 0;  // strides

  explicit BitTiles(const BlockMask& mask);
  bool seen(std::int64_t index, std::int64_t query, std::int64_t key) const {
    return data[index * tile + query * row + key / 8 * byte] >> (key % 8) & 1;
  }
};

/// Number of rows in a stage.
inline int stage_rows(const std::vector<planning::KeyStep>& stage) {
  std::int64_t count = 0;
  for (const planning::KeyStep& step : stage) count += step.count;
  return static_cast<int>(count);
}

/// The score of a masked pair.
inline constexpr float kHidden = -std::numeric_limits<float>::infinity();

/// Masks a strip of scores, [stage rows, lanes], by position and by bit tiles. `bits(step, lane)`
/// returns a function that tells, per row of the step, whether the bit tile shows the pair.
template <class Bits>
void hide_scores(const Simd& isa, const std::vector<planning::KeyStep>& stage,
                 const LaneSight& sight, int vectors, std::int64_t lanes, float* scores,
                 const Bits& bits) {
  const std::int64_t width = static_cast<std::int64_t>(vectors) * isa.lanes;
  for (const planning::KeyStep& step : stage) {
    if (step.boundary)
      isa.hide(scores, width, static_cast<int>(step.count), vectors,
               static_cast<std::int32_t>(step.begin), sight);
    if (step.bit_tile >= 0)
      for (std::int64_t lane = 0; lane < std::min(width, lanes); ++lane) {
        const auto seen = bits(step, lane);
        for (std::int64_t j = 0; j < step.count; ++j)
          if (!seen(step.begin + j)) scores[j * width + lane] = kHidden;
      }
    scores += step.count * width;
  }
}

/// Loads `count` rows of a tensor, transposed, into strips of lanes: strip s holds [dim x width].
void load_lanes(const Simd& isa, const RowsView& source, std::int64_t first, std::int64_t count,
                std::int64_t dim, std::int64_t lane, const Strips& strips, float* to, float* row);
/// The reverse: stores lanes [lane, lane + count), each multiplied by factor[lane] if given, as
/// rows.
void store_lanes(const Simd& isa, const float* from, const Strips& strips, std::int64_t lane,
                 std::int64_t count, std::int64_t dim, const float* factor, const RowsView& to,
                 std::int64_t first, float* row);

}  // namespace tessera::cpu
