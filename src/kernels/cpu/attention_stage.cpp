#include "src/kernels/cpu/attention_stage.hpp"

#include <algorithm>

namespace tessera::cpu {

using planning::KeyStep;

bool Stages::next(std::vector<KeyStep>& stage) {
  stage.clear();
  std::int64_t room = size_;
  while (next_ < steps_.size() && room > 0) {
    KeyStep step = steps_[next_];
    const std::int64_t left = step.count - taken_;
    // A step that fits into the next stage as a whole is not split.
    if (left > room && !stage.empty() && left <= size_) break;
    step.begin += taken_;
    step.count = std::min(left, room);
    stage.push_back(step);
    room -= step.count;
    taken_ += step.count;
    if (taken_ == steps_[next_].count) {
      ++next_;
      taken_ = 0;
    }
  }
  return !stage.empty();
}

void StageRows::load(const Simd& isa, const KeyRowsView& source, const std::vector<KeyStep>& stage,
                     std::int64_t dim, float* scratch) {
  runs.clear();
  // Runs shorter than a register tile are copied: multiplying them in place is slower.
  const bool in_place =
      source.rows.dtype == DType::f32 && (!source.paged || source.pages.page_size >= 16);
  row = in_place ? source.rows.row : dim;
  col = in_place ? source.rows.col : 1;
  const std::int64_t pitch = source.rows.row * size_of(source.rows.dtype);
  int at = 0;
  for (const KeyStep& step : stage) {
    for (std::int64_t key = step.begin; key < step.begin + step.count;) {
      const KeyRowsView::Run run = source.run(key, step.begin + step.count);
      const int count = static_cast<int>(run.count);
      if (in_place) {
        runs.push_back({static_cast<const float*>(run.data), at, count});
      } else {
        float* const rows = scratch + at * dim;
        for (int i = 0; i < count; ++i)
          isa.load(static_cast<const char*>(run.data) + i * pitch, source.rows.dtype,
                   source.rows.col, dim, rows + i * dim);
        if (run.scale != 1.0f)
          for (std::int64_t i = 0; i < count * dim; ++i) rows[i] *= run.scale;
      }
      key += run.count;
      at += count;
    }
  }
  if (!in_place) runs.push_back({scratch, 0, at});
}

void StageRows::times(const Simd& isa, const float* right, std::int64_t dim, int vectors,
                      float* c) const {
  const std::int64_t width = static_cast<std::int64_t>(vectors) * isa.lanes;
  for (const Run& run : runs) {
    const Segment segment{run.data, right, dim};
    isa.multiply(&segment, 1, {row, col, width}, run.count, vectors, c + run.first * width, width,
                 false);
  }
}

void StageRows::transposed_times(const Simd& isa, const float* right, std::int64_t dim, int vectors,
                                 float* c, std::vector<Segment>& segments) const {
  const std::int64_t width = static_cast<std::int64_t>(vectors) * isa.lanes;
  segments.clear();
  for (const Run& run : runs) segments.push_back({run.data, right + run.first * width, run.count});
  isa.multiply(segments.data(), static_cast<int>(segments.size()), {col, row, width},
               static_cast<int>(dim), vectors, c, width, true);
}

BitTiles::BitTiles(const BlockMask& mask) {
  if (!mask.bits) return;
  data = static_cast<const std::uint8_t*>(mask.bits.data);
  tile = mask.bits.stride(0);
  row = mask.bits.stride(1);
  byte = mask.bits.stride(2);
}

namespace {

/// The position of a lane: its strip's base and pitch, and its column there.
struct LanePlace {
  std::int64_t base, width, column;
};

LanePlace place_of(std::int64_t lane, std::int64_t dim, const Strips& strips, int lanes) {
  int strip = 0;
  while (strip + 1 < strips.count &&
         lane >= static_cast<std::int64_t>(strips.first(strip + 1)) * lanes)
    ++strip;
  const std::int64_t first = static_cast<std::int64_t>(strips.first(strip)) * lanes;
  return {first * dim, static_cast<std::int64_t>(strips.width(strip)) * lanes, lane - first};
}

}  // namespace

void load_lanes(const Simd& isa, const RowsView& source, std::int64_t first, std::int64_t count,
                std::int64_t dim, std::int64_t lane, const Strips& strips, float* to, float* row) {
  for (std::int64_t i = 0; i < count; ++i) {
    isa.load(source.at(first + i), source.dtype, source.col, dim, row);
    const float factor = source.factors.of(first + i);
    if (factor != 1.0f)
      for (std::int64_t d = 0; d < dim; ++d) row[d] *= factor;
    const LanePlace place = place_of(lane + i, dim, strips, isa.lanes);
    float* column = to + place.base + place.column;
    for (std::int64_t d = 0; d < dim; ++d) column[d * place.width] = row[d];
  }
}

void store_lanes(const Simd& isa, const float* from, const Strips& strips, std::int64_t lane,
                 std::int64_t count, std::int64_t dim, const float* factor, const RowsView& to,
                 std::int64_t first, float* row) {
  for (std::int64_t i = 0; i < count; ++i) {
    const LanePlace place = place_of(lane + i, dim, strips, isa.lanes);
    const float* column = from + place.base + place.column;
    const float scale = factor ? factor[lane + i] : 1.0f;
    for (std::int64_t d = 0; d < dim; ++d) row[d] = column[d * place.width] * scale;
    isa.store(row, dim, to.at(first + i), to.dtype, to.col);
  }
}

}  // namespace tessera::cpu
