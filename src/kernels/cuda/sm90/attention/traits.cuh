#pragma once

#include <cuda.h>

#include <cstdint>

#include "src/kernels/cuda/attention/factors.cuh"
#include "src/kernels/cuda/attention/masks.cuh"
#include "src/kernels/cuda/attention/results.cuh"
#include "src/kernels/cuda/attention/scores.cuh"
#include "src/kernels/cuda/sm90/attention/pipeline.cuh"
#include "src/kernels/cuda/sm90/attention/policy.cuh"
#include "src/kernels/cuda/sm90/attention/shape.cuh"

namespace tessera::cuda::sm90::attention {

/// All compile-time constants and types of a kernel.
template <planning::Tile kOfRow, class Element, Instance kInstance>
struct Traits : Shape<kOfRow, Element>,
                Policy<Shape<kOfRow, Element>, kInstance>,
                Pipeline<Shape<kOfRow, Element>, Policy<Shape<kOfRow, Element>, kInstance>> {
  using typename Shape<kOfRow, Element>::Keys, typename Shape<kOfRow, Element>::Values;
};

/// The kernel's parameters.
struct Arguments {
  CUtensorMap q, k, v;
  union {
    CUtensorMap out;
    CUtensorMap k_pairs;  // FP8, whose results TMA does not store: boxes of two rows of K
  };
  Walk walk;
  planning::PageView pages;  // without a table: contiguous keys
  Result result;
  // Rows that TMA stores at once: a consumer's or, where queries lie across consumers, all of the
  // tile's; 0: TMA cannot store the result.
  int stored_rows;
  bool overlaps_tiles;  // see AttentionLayout::overlaps
  int zeros_from;       // keys from here on lie outside of the tensor: TMA writes zeros
  Exponents exponents;
  ScoreTransform transform;
  Sinks sinks;
  ElementMasks masks;
  FactorsOf<true> q_factors, k_factors, v_factors;  // of FP8
  bool factors_by_step;                             // keys and values of a tile have several
  bool v_by_keys;                                   // of FP8: see AttentionShape::v_by_keys
  int k_rows;                                       // then: rows of K per sequence
  void* partials;                                   // partial results of split tiles
  std::uint64_t* merge_counts;                      // finished parts per consumer of a split tile
};

}  // namespace tessera::cuda::sm90::attention
