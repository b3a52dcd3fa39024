#pragma once

#include <cublasLt.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "src/kernels/cuda/cublaslt/product.hpp"

// Products through a table of cuBLASLt's functions: descriptors, and the algorithms that the
// library chose. Tests hand in a table of their own.
namespace tessera::cuda::cublaslt {

/// The functions of the library that are called. The Init functions behind the header's inline ones
/// are exported.
struct Functions {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtGetStatusName) status_name;
  decltype(&cublasLtMatrixLayoutInit_internal) layout_init;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulDescInit_internal) desc_init;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatmulPreferenceInit_internal) preference_init;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmul) matmul;
};

class Engine {
 public:
  /// Allows the library to allocate and load code, until the result ends.
  using Allow = std::shared_ptr<void> (*)();

  /// `allow_first`: for the first calls of each product; may be null.
  explicit Engine(const Functions& functions, Allow allow_first = nullptr)
      : lt_(functions), allow_first_(allow_first) {}

  /// Enqueues on the current device, which is the problem's. The first run of a key asks the
  /// library for an algorithm, on the host; later ones find it here.
  void run(const planning::Call& call);

  /// The bytes of workspace that `run` uses, at most the planned ones.
  std::int64_t workspace(const planning::Call& call);

 private:
  /// A product that is ready to run but for its pointers.
  struct Prepared {
    cublasLtHandle_t handle;
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t left, right, c, out;
    cublasLtMatmulAlgo_t algorithm;
    std::size_t workspace;
    mutable std::atomic<bool> has_run = false;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const;
  };

  std::shared_ptr<const Prepared> find(const Product& product, const planning::Call& call);
  std::shared_ptr<const Prepared> prepare(const Product& product, const planning::Call& call);
  void describe(const Key& key, Prepared& prepared) const;
  void check_has_scale_modes() const;
  cublasLtMatrixLayoutOpaque_t layout_of(const Matrix& matrix, const Key& key, DType dtype) const;
  cublasLtHandle_t handle_of(std::int64_t device);
  void check(cublasStatus_t status, const char* call) const;

  std::shared_ptr<void> allow() const { return allow_first_ ? allow_first_() : nullptr; }

  Functions lt_;
  Allow allow_first_;
  std::mutex making_;                                           // handles
  std::unordered_map<std::int64_t, cublasLtHandle_t> handles_;  // per device, never destroyed
  std::shared_mutex reading_;
  std::unordered_map<Key, std::shared_ptr<const Prepared>, Hash> known_;
};

}  // namespace tessera::cuda::cublaslt
