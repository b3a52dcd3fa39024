#pragma once

#include <algorithm>
#include <cstdint>

#include "src/walk/walk.hpp"

// How the line of stored columns (walk.cuh) is cut into tiles.
namespace tessera::cuda::sm90::sddmm {

constexpr std::int64_t up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step; }

/// Tiles of one width. A job is what the blocks of a cluster take at one time: a tile each, `apart`
/// tiles from one block's to the next one's.
struct Section {
  std::int64_t begin = 0, end = 0;  // columns of the line
  int width = 1, apart = 1, jobs = 0;
  TESSERA_HD constexpr int tile(int job, int rank, int cluster) const {
    return (job / apart * cluster + rank) * apart + job % apart;
  }
};

/// What the cut depends on.
struct Cut {
  std::int64_t columns, rows;      // of the line; rows of blocks that it comes from
  std::int64_t width, piece;       // columns of a tile, and of a piece
  std::int64_t clusters, cluster;  // clusters that run at one time, blocks of one
  bool side_by_side;               // blocks of a cluster take neighbouring tiles
};

/// Tiles of the full width: whole rounds of all clusters, or everything.
inline Section body_of(const Cut& cut, bool rounds_only) {
  constexpr std::int64_t kMaxApart = 1024;
  // Blocks of a cluster that share columns take tiles where the next row of blocks gathers about
  // the same ones, if rows are as long as each other.
  const std::int64_t row = cut.columns / std::max<std::int64_t>(cut.rows, 1);
  const std::int64_t row_tiles =
      std::clamp<std::int64_t>((row + cut.width / 2) / cut.width, 1, kMaxApart);
  const std::int64_t apart = cut.side_by_side ? 1 : row_tiles;
  std::int64_t jobs = up(up(cut.columns, cut.width), cut.cluster * apart) * apart;
  if (rounds_only) {
    jobs = cut.columns / (cut.width * cut.cluster * cut.clusters) * cut.clusters;
    jobs -= jobs % apart;
  }
  return {.begin = 0,
          .end = std::min(jobs * cut.cluster * cut.width, cut.columns),
          .width = static_cast<int>(cut.width),
          .apart = static_cast<int>(apart),
          .jobs = static_cast<int>(jobs)};
}

/// What the body leaves: tiles just so narrow that they fill whole rounds.
inline Section tail_of(const Cut& cut, const Section& body) {
  const std::int64_t rest = cut.columns - body.end, blocks = cut.clusters * cut.cluster;
  if (rest == 0) return {};
  const std::int64_t rounds = up(rest, blocks * cut.width);
  const std::int64_t width = up(up(rest, blocks * rounds), cut.piece) * cut.piece;
  const int jobs = static_cast<int>(up(up(rest, width), cut.cluster));
  return {.begin = body.end,
          .end = cut.columns,
          .width = static_cast<int>(width),
          .apart = cut.side_by_side ? 1 : jobs,
          .jobs = jobs};
}

}  // namespace tessera::cuda::sm90::sddmm
