#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <tessera/pattern.hpp>

#include "src/core/checked.hpp"
#include "src/sparse/power_law.hpp"
#include "src/sparse/random.hpp"
#include "src/sparse/rows.hpp"
#include "src/sparse/support.hpp"

// Patterns of pruned weights, meshes and graphs. Version 1, frozen like `generators.cpp`.
namespace tessera::patterns {
namespace {

using sparse::append_set;
using sparse::close_row;
using sparse::open_pattern;
using sparse::Random;
using sparse::Sampler;

// A grid of nodes in natural order. The neighbours of a node are the nodes at most one step away
// along every axis, itself included.
class Grid {
 public:
  explicit Grid(const std::array<std::int64_t, 3>& sizes) : sizes_(sizes) {}

  std::int64_t nodes() const { return sizes_[0] * sizes_[1] * sizes_[2]; }

  void neighbours(std::int64_t node, std::vector<std::int64_t>& found) const {
    const std::int64_t x = node / (sizes_[1] * sizes_[2]);
    const std::int64_t y = node / sizes_[2] % sizes_[1], z = node % sizes_[2];
    found.clear();
    for (std::int64_t i = begin(x); i < end(x, 0); ++i) {
      for (std::int64_t j = begin(y); j < end(y, 1); ++j) {
        for (std::int64_t k = begin(z); k < end(z, 2); ++k) {
          found.push_back((i * sizes_[1] + j) * sizes_[2] + k);
        }
      }
    }
  }

 private:
  static std::int64_t begin(std::int64_t at) { return std::max<std::int64_t>(0, at - 1); }
  std::int64_t end(std::int64_t at, std::size_t axis) const {
    return std::min(sizes_[axis], at + 2);
  }

  std::array<std::int64_t, 3> sizes_;
};

// The nodes in Cuthill-McKee order, starting at a corner: a breadth-first search that visits the
// neighbours of a node by their degree, then by number.
std::vector<std::int64_t> cuthill_mckee(const Grid& grid) {
  const std::int64_t nodes = grid.nodes();
  auto degree = sparse::filled<std::int64_t>(nodes, 0, "mesh: nodes");
  auto reached = sparse::filled<char>(nodes, 0, "mesh: nodes");
  std::vector<std::int64_t> order, near;
  for (std::int64_t node = 0; node < nodes; ++node) {
    grid.neighbours(node, near);
    degree[static_cast<std::size_t>(node)] = static_cast<std::int64_t>(near.size());
  }
  const auto fewer = [&](std::int64_t a, std::int64_t b) {
    const auto x = degree[static_cast<std::size_t>(a)], y = degree[static_cast<std::size_t>(b)];
    return x != y ? x < y : a < b;
  };
  sparse::reserve(order, nodes, "mesh: nodes");
  order.push_back(0);
  reached[0] = 1;
  for (std::size_t next = 0; next < order.size(); ++next) {
    grid.neighbours(order[next], near);
    std::sort(near.begin(), near.end(), fewer);
    for (const std::int64_t node : near) {
      if (reached[static_cast<std::size_t>(node)]) continue;
      reached[static_cast<std::size_t>(node)] = 1;
      order.push_back(node);
    }
  }
  return order;
}

}  // namespace

Pattern n_of_m(std::int64_t rows, std::int64_t cols, std::int64_t n, std::int64_t m,
               std::uint64_t seed) {
  sparse::require_at_least(m, 1, "n_of_m: m");
  if (n < 0 || n > m) {
    sparse::refuse("n_of_m: n: expected 0 to m = " + std::to_string(m) + ", got " +
                   std::to_string(n));
  }
  Pattern pattern = open_pattern(rows, cols, "n_of_m");
  Random source(seed);
  Sampler sampler(std::min(m, cols));
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t begin = 0; begin < cols;) {
      const std::int64_t width = std::min(m, cols - begin);
      const auto& drawn = sampler.draw(source, width, std::min(n, width));
      sparse::make_room(pattern, static_cast<std::int64_t>(drawn.size()));
      for (const std::int64_t pick : drawn) pattern.indices.push_back(begin + pick);
      begin += width;
    }
    close_row(pattern);
  }
  return pattern;
}

Pattern mesh(const std::array<std::int64_t, 3>& nodes, std::int64_t unknowns, std::int64_t block) {
  std::int64_t equations = 1;
  for (const std::int64_t size : nodes) {
    sparse::require_at_least(size, 1, "mesh: nodes");
    equations = core::checked_multiply(equations, size, "mesh: nodes");
  }
  sparse::require_at_least(unknowns, 1, "mesh: unknowns");
  sparse::require_at_least(block, 1, "mesh: block");
  const Grid grid(nodes);
  equations = core::checked_multiply(equations, unknowns, "mesh: unknowns");
  core::checked_add(equations, block, "mesh: block");
  const std::vector<std::int64_t> order = cuthill_mckee(grid);
  auto place = sparse::filled<std::int64_t>(grid.nodes(), 0, "mesh: nodes");
  for (std::size_t at = 0; at < order.size(); ++at) {
    place[static_cast<std::size_t>(order[at])] = static_cast<std::int64_t>(at);
  }
  const std::int64_t lines = (equations + block - 1) / block;
  Pattern pattern = open_pattern(lines, lines, "mesh");
  std::vector<std::int64_t> row, near;
  for (std::int64_t i = 0; i < lines; ++i) {
    row.clear();
    const std::int64_t last = (std::min(equations, (i + 1) * block) - 1) / unknowns;
    for (std::int64_t at = i * block / unknowns; at <= last; ++at) {
      grid.neighbours(order[static_cast<std::size_t>(at)], near);
      for (const std::int64_t node : near) {
        const std::int64_t first = place[static_cast<std::size_t>(node)] * unknowns;
        for (std::int64_t j = first / block; j <= (first + unknowns - 1) / block; ++j) {
          if (row.empty() || row.back() != j) row.push_back(j);
        }
      }
    }
    append_set(pattern, row);
    close_row(pattern);
  }
  return pattern;
}

Pattern power_law_graph(std::int64_t rows, std::int64_t cols, double density, double exponent,
                        std::uint64_t seed) {
  sparse::require_power_law(density, exponent, "power_law_graph");
  Pattern pattern = open_pattern(rows, cols, "power_law_graph");
  const std::int64_t edges = sparse::stored_at(density, rows, cols, "power_law_graph");
  std::vector<std::int64_t> lengths = sparse::zipf_shares(rows, exponent, edges, cols);
  std::vector<std::int64_t> popular = sparse::zipf_shares(cols, exponent, edges, rows);
  // Shuffles both with the same seed, so that in a square graph a node with many outgoing edges
  // also has many incoming ones.
  Random(seed).shuffle(lengths);
  Random source(seed);
  source.shuffle(popular);
  std::vector<std::int64_t> ends, row;
  sparse::reserve(ends, edges, "power_law_graph: rows");
  for (std::int64_t j = 0; j < cols; ++j) {
    ends.insert(ends.end(), static_cast<std::size_t>(popular[static_cast<std::size_t>(j)]), j);
  }
  source.shuffle(ends);
  auto next = ends.cbegin();
  for (const std::int64_t length : lengths) {
    row.assign(next, next + length);
    next += length;
    append_set(pattern, row);
    close_row(pattern);
  }
  return pattern;
}

}  // namespace tessera::patterns
