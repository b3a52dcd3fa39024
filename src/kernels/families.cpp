#include "src/kernels/families.hpp"

#include "src/kernels/cpu/plan.hpp"
#include "src/kernels/cuda/bsr/plan.hpp"
#include "src/kernels/cuda/cublaslt/plan.hpp"
#include "src/kernels/cuda/merge/plan.hpp"
#include "src/kernels/cuda/sm80/attention/plan.hpp"
#include "src/kernels/cuda/sm80/attention_backward/plan.hpp"
#include "src/kernels/cuda/sm80/product/plan.hpp"
#include "src/kernels/cuda/sm90/attention/plan.hpp"
#include "src/kernels/cuda/sm90/attention_backward/plan.hpp"
#include "src/kernels/cuda/sm90/bsr/plan.hpp"
#include "src/kernels/cuda/sm90/decode/plan.hpp"
#include "src/kernels/cuda/sm90/matmul/plan.hpp"
#include "src/kernels/cuda/sm90/sddmm/plan.hpp"
#include "src/kernels/cuda/sm90/skinny/plan.hpp"
#include "src/kernels/cuda/sm90/spgemm/plan.hpp"
#include "src/kernels/cuda/spgemm/plan.hpp"

namespace tessera::planning {

std::span<const KernelFamily> all_families() {
  // At equal predicted times, the first family wins.
  // clang-format off
  static const KernelFamily kFamilies[] = {
      sm90_merge_family(),
      sm90_matmul_family(),
      sm90_skinny_family(),
      sm90_bsr_family(),
      sm90_sddmm_family(),
      sm90_spgemm_family(),
      sm90_decode_family(),
      sm90_attention_family(),
      sm80_attention_family(),
      sm90_attention_backward_family(),
      sm80_attention_backward_family(),
      sm80_merge_family(),
      sm80_spgemm_family(),
      sm80_bsr_family(),
      sm80_product_family(),
      sm80_cublaslt_family(),
      cpu_matmul_family(),
      cpu_sddmm_family(),
      cpu_spgemm_family(),
      cpu_attention_family(),
      cpu_attention_backward_family(),
      cpu_merge_family(),
  };
  // clang-format on
  return kFamilies;
}

FoundRow find_row(std::span<const KernelFamily> families, std::string_view name) {
  for (const KernelFamily& family : families) {
    if (!name.starts_with(family.name)) continue;
    for (const KernelRow& row : family.rows)
      if (name == row.name) return {&family, &row};
  }
  return {};
}

}  // namespace tessera::planning
