#pragma once

#include <cstdint>

#include <tessera/tensor.hpp>

// The vectorised inner loops: compiled once per instruction set, chosen when the library is first
// used. Everything computes in f32; other dtypes are converted on load and store.
namespace tessera::cpu {

/// One term of a sum of products: rows of the left operand, read in place by broadcast, times a
/// strip of the right operand, `depth` deep.
struct Segment {
  const float* left;
  const float* right;
  std::int64_t depth;
};

/// Strides of the same, in elements: any for the left operand; the right operand is contiguous
/// along its vector dimension.
struct ProductStrides {
  std::int64_t left_row, left_k, right_k;
};

/// The keys that each lane sees: lane r sees key j if lo[r] <= j < hi[r].
struct LaneSight {
  const std::int32_t* lo;
  const std::int32_t* hi;
};

/// Score transform: scale * s, or softcap * tanh(scale * s / softcap) if softcap > 0.
struct ScoreMap {
  float scale, softcap;
};

struct Simd {
  const char* name;
  int lanes;          // floats per vector
  int strip_vectors;  // maximum strip width of `multiply`, in vectors

  /// c[row][0 .. vectors * lanes) (+)= sum over segments, computed in register tiles.
  void (*multiply)(const Segment* segments, int count, const ProductStrides& strides, int rows,
                   int vectors, float* c, std::int64_t c_row, bool accumulate);

  /// Convert n elements to and from f32.
  void (*load)(const void* source, DType dtype, std::int64_t stride, std::int64_t n, float* out);
  void (*store)(const float* source, std::int64_t n, void* out, DType dtype, std::int64_t stride);

  // Attention with queries in lanes: a strip holds `vectors` vectors of queries; each row is a key.
  /// Sets the scores of keys first_key + j, j < keys, to -inf in lanes that do not see them.
  void (*hide)(float* strip, std::int64_t row, int keys, int vectors, std::int32_t first_key,
               const LaneSight& sight);
  /// One stage of the online softmax: turns scores into P, updates each lane's maximum and sum, and
  /// writes the factor that rescales what was accumulated before.
  void (*softmax)(float* strip, std::int64_t row, int keys, int vectors, const ScoreMap& map,
                  float* maximum, float* sum, float* shrink);
  /// c[j][lane] *= factor[lane].
  void (*scale_lanes)(float* c, std::int64_t row, int rows, int vectors, const float* factor);

  // Backward. `score` holds q.k and becomes P; `dscore` holds dout.v and becomes the gradient of
  // q.k. lse and delta are indexed by lane if `per_lane` (lanes are queries), else by row. Masked
  // pairs have score -inf.
  void (*backward)(float* score, float* dscore, std::int64_t row, int rows, int vectors,
                   const ScoreMap& map, const float* lse, const float* delta, bool per_lane);

  // Element-wise, in place.
  void (*silu)(float* x, std::int64_t n);
  void (*gelu_tanh)(float* x, std::int64_t n);
};

/// The loops for the best instruction set of this machine, or for the one that TESSERA_SIMD names
/// (scalar, sse4, avx2, avx512, neon) if the machine supports it.
const Simd& simd();

/// Divides `columns` into strips as evenly as the maximum width allows. Strip i starts at vector
/// first(i).
struct Strips {
  int vectors = 0, count = 0;
  Strips(std::int64_t columns, const Simd& isa)
      : vectors(static_cast<int>((columns + isa.lanes - 1) / isa.lanes)),
        count((vectors + isa.strip_vectors - 1) / isa.strip_vectors) {}
  int first(int strip) const {
    return static_cast<int>(static_cast<std::int64_t>(vectors) * strip / count);
  }
  int width(int strip) const { return first(strip + 1) - first(strip); }
};

}  // namespace tessera::cpu
