#pragma once

#include <cstdint>

#include "src/kernels/cuda/common/fragment.cuh"
#include "src/kernels/cuda/sm90/matmul/traits.cuh"
#include "src/kernels/cuda/sm90/tile/wgmma.cuh"

// The consumer warpgroups of FP8.
namespace tessera::cuda::sm90::matmul {

/// One warpgroup: kPieces times 64 columns of each tile, and all of its rows. Factors of the dense
/// side may differ from line to line and step to step, those of stored blocks only from step to
/// step; so the columns of the tile are the M side of wgmma, where a thread has two lines per
/// piece, and the sums are those of the transposed tile. The tensor cores' sums of FP8 have few
/// bits: a step is summed up by itself, multiplied by its factors, and added in f32. A warpgroup
/// waits for each of its MMAs; the other one multiplies meanwhile.
template <class T>
class NarrowConsumer {
 public:
  __device__ __forceinline__ NarrowConsumer(const Arguments& args, typename T::Shared& shared,
                                            int consumer)
      : args_(args), shared_(shared), consumer_(consumer), thread_(threadIdx.x % kWarpgroup) {}

  __device__ __forceinline__ void run() {
    Task task = next_task();
    while (task.use != StageUse::end) {
#pragma unroll
      for (int i = 0; i < kPieces * kSums; ++i) sum_[i] = 0.0f;
      lines_ = 0;
      while (task.use == StageUse::multiply) {
        multiply(task.consumers);
        lines_ |= task.consumers;
        at_.advance();
        task = next_task();
      }
      store();
      at_.advance();
      task = next_task();
    }
  }

 private:
  using Element = typename T::Element;
  using Staging = typename T::Staging;
  static constexpr int kPieces = T::kPieces, kRows = T::kShape.m, kSums = kRows / 2;
  static constexpr int kLineSums = tile::kLine / 2;  // of one line in a piece
  static constexpr int kMmas = T::kDepthBytes / 32;
  static constexpr unsigned kAllLines = (1u << T::kLines) - 1;

  __device__ __forceinline__ const auto& about() const {
    return shared_.stage_descriptors[at_.stage];
  }
  __device__ __forceinline__ Task next_task() {
    tile::wait(&shared_.ring.full[at_.stage], at_.parity);
    return about().read_task();
  }

  /// The column of the tile in the `half`-th row of wgmma's M side that this thread has.
  __device__ __forceinline__ int column(int piece, int half) const {
    return (consumer_ * kPieces + piece) * tile::kLine + Fragment(thread_).row(half);
  }

  __device__ __forceinline__ void multiply(unsigned lines) {
    if (lines == kAllLines) {
      multiply_both();
    } else if (lines == 1) {
      multiply_line<0>();
    } else {
      multiply_line<1>();
    }
  }

  /// The step's factors: of lines of the tile, and of this thread's columns.
  struct StepFactors {
    float left[T::kLines], right[kPieces][2];
  };
  __device__ __forceinline__ StepFactors step_factors() {
    StepFactors factors;
#pragma unroll
    for (float& left : factors.left) left = 1.0f;
#pragma unroll
    for (auto& piece : factors.right) piece[0] = piece[1] = 1.0f;
    if (!args_.has_step_factors()) return factors;
    auto& loaded = shared_.factors;
    tile::wait(&loaded.ring.full[0], steps_++ % 2);
#pragma unroll
    for (int line = 0; line < T::kLines; ++line) factors.left[line] = loaded.left[line];
    if (args_.right.by_step()) {
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          factors.right[piece][half] = loaded.right[column(piece, half)];
    }
    __syncwarp();
    if (thread_ % 32 == 0) tile::arrive(&loaded.ring.empty[0]);
    return factors;
  }

  /// Both lines, in one MMA per piece and depth.
  __device__ __forceinline__ void multiply_both() {
    const std::uint64_t a = rows_of_stage(0), b = columns_of_stage();
    float part[kSums];
    StepFactors factors;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      begin_mmas<kRows>(part, a, b, piece);
      if (piece == 0) {
        factors = step_factors();
        release_lent();
      }
      tile::mma_wait<0>();
      tile::settle(part);
      if (piece == kPieces - 1) release(at_.stage);
#pragma unroll
      for (int line = 0; line < T::kLines; ++line)
        add(piece, line, reinterpret_cast<float(&)[kLineSums]>(part[line * kLineSums]), factors);
    }
  }

  /// One line, all pieces together.
  template <int kLine>
  __device__ __forceinline__ void multiply_line() {
    const std::uint64_t a = rows_of_stage(kLine * tile::kLine), b = columns_of_stage();
    float part[kPieces][kLineSums];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) begin_mmas<tile::kLine>(part[piece], a, b, piece);
    const StepFactors factors = step_factors();
    release_lent();
    tile::mma_wait<0>();
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) tile::settle(part[piece]);
    release(at_.stage);
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) add(piece, kLine, part[piece], factors);
  }

  __device__ __forceinline__ std::uint64_t rows_of_stage(int first) const {
    return tile::kept_uniform(shared_.a[at_.stage].view(first));
  }
  __device__ __forceinline__ std::uint64_t columns_of_stage() const {
    return tile::kept_uniform(shared_.b[at_.stage].view(consumer_ * kPieces * tile::kLine));
  }

  /// Issues the MMAs of a piece and kN rows of the tile.
  template <int kN>
  __device__ __forceinline__ void begin_mmas(float (&part)[kN / 2], std::uint64_t a,
                                             std::uint64_t b, int piece) {
    constexpr int kPieceBytes = tile::kLine * T::kDepthBytes;
    tile::settle(part);
    tile::mma_fence();
#pragma unroll
    for (int k = 0; k < kMmas; ++k)
      tile::mma<Element, kN, Major::k, Major::k>(
          part, b + (piece * kPieceBytes >> 4) + k * T::BTile::kDepthStep,
          a + k * T::ATile::kDepthStep, k == 0);
    tile::mma_commit();
  }

  /// Adds the sums of one step, times their factors.
  __device__ __forceinline__ void add(int piece, int line, const float (&part)[kLineSums],
                                      const StepFactors& factors) {
    const float left = factors.left[line];
    const float factor[] = {left * factors.right[piece][0], left * factors.right[piece][1]};
#pragma unroll
    for (int i = 0; i < kLineSums; ++i) {
      float& sum = sum_[piece * kSums + line * kLineSums + i];
      sum = fmaf(part[i], factor[i / 2 % 2], sum);
    }
  }

  __device__ __forceinline__ void store() {
    const Place place = about().place;
    release_lent();
    // What the compiler derives from the thread for an epilogue would be kept through all steps.
    int thread = thread_;
    asm volatile("" : "+r"(thread));
    if (args_.left.at_end) multiply_by_rows(place, thread);
    if (args_.right.at_end) multiply_by_columns(place);
    const int col = place.col + consumer_ * kPieces * tile::kLine;
    if (store_by_tma(place, col, thread)) {
      if constexpr (Staging::kLent > 0) {
        lent_ = true;
        return;
      }
    } else {
      // Always from the same registers, into which the other pieces move.
#pragma unroll 1
      for (int piece = 0; piece < kPieces; ++piece) {
        product::store_finished<kRows, 1>(args_.finish, reinterpret_cast<float(&)[kSums]>(sum_),
                                          col + piece * tile::kLine, place.row, place.batch,
                                          place.col_end, place.row_end, thread);
#pragma unroll
        for (int i = 0; i + kSums < kPieces * kSums; ++i) sum_[i] = sum_[i + kSums];
      }
    }
    release(at_.stage);
  }

  /// Whether anything has been added to the sums of a row of the tile. A factor of NaN reaches no
  /// others.
  __device__ __forceinline__ bool has_products(int row) const {
    return (lines_ >> row / tile::kLine & 1) != 0;
  }

  /// Multiplies the sums by the factors of the tile's rows.
  __device__ __forceinline__ void multiply_by_rows(const Place& place, int thread) {
    const Fragment fragment(thread);
#pragma unroll
    for (int group = 0; group < kRows / 8; ++group)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float factor =
            has_products(group * 8)
                ? args_.left.of(place.batch, place.row + fragment.col(group) + i, 0, 0)
                : 1.0f;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            sum_[piece * kSums + group * 4 + half * 2 + i] *= factor;
      }
  }

  /// The same by the factors of its columns.
  __device__ __forceinline__ void multiply_by_columns(const Place& place) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor = args_.right.of(place.batch, place.col + column(piece, half), 0, 0);
#pragma unroll
        for (int i = half * 2; i < kSums; i += 4)
#pragma unroll
          for (int j = 0; j < 2; ++j)
            sum_[piece * kSums + i + j] *= has_products(i * 2) ? factor : 1.0f;
      }
  }

  /// Stores the sums through TMA. False, and nothing is stored, where it cannot write them.
  __device__ __forceinline__ bool store_by_tma(const Place& place, int col, int thread) {
    using product::TmaStore;
    if (args_.tma_store == TmaStore::none) return false;
    const bool transposed = args_.tma_store == TmaStore::by_columns;
    // TMA would write into the next group, and begins at multiples of 16 bytes.
    if (args_.walk.cut == Cut::cols && col + kPieces * tile::kLine > place.col_end) return false;
    if (transposed && col % 8 != 0) return false;
    using Panel = typename Staging::Panel;
    static_assert(T::kConsumers * Staging::kLent * sizeof(Panel) <= T::BTile::kBytes);
    Panel* lent = reinterpret_cast<Panel*>(shared_.b[at_.stage].data) + consumer_ * Staging::kLent;
    const int batch = args_.finish.out.batch == 0 ? 0 : place.batch;
    const auto store = [&]<DType kOut, bool kTransposed>() {
      shared_.staging[consumer_].template store<kOut, kTransposed>(
          args_.out, lent, sum_, col, place.row, batch, thread, kStoreBarrier + consumer_);
    };
    if (args_.finish.out.dtype == DType::bf16) {
      transposed ? store.template operator()<DType::bf16, true>()
                 : store.template operator()<DType::bf16, false>();
    } else {
      transposed ? store.template operator()<DType::f16, true>()
                 : store.template operator()<DType::f16, false>();
    }
    return true;
  }

  __device__ __forceinline__ void release(int stage) {
    __syncwarp();
    if (thread_ % 32 == 0) tile::arrive(&shared_.ring.empty[stage]);
  }
  /// Releases the stage before this one, if TMA reads stored sums from it.
  __device__ __forceinline__ void release_lent() {
    if constexpr (Staging::kLent > 0) {
      if (!lent_) return;
      Staging::wait_until_read(thread_);
      release(at_.stage == 0 ? T::kStages - 1 : at_.stage - 1);
      lent_ = false;
    }
  }

  const Arguments& args_;
  typename T::Shared& shared_;
  int consumer_, thread_;
  tile::RingCursor<T::kStages> at_;
  bool lent_ = false;
  unsigned lines_ = 0;          // of the tile, to which products have been added
  unsigned steps_ = 0;          // whose factors have been read
  float sum_[kPieces * kSums];  // the transposed tile: piece, row of the tile
};

}  // namespace tessera::cuda::sm90::matmul
