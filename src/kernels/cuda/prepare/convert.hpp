#pragma once

#include "src/walk/conversions.hpp"

// Conversions on a GPU stream; cpu/convert.hpp has the same functions for host memory. The contents
// of lists are not trusted.
namespace tessera::cuda {

/// The device and stream of a conversion.
struct Place {
  int device = 0;
  void* stream = nullptr;
};

void to_dense(const planning::BlockCopy& copy, const Place& place);
void gather_blocks(const planning::BlockCopy& copy, const Place& place);
void block_norms(const planning::NormsShape& shape, const Place& place);
/// `scratch`: memory of the size that `carve_select_scratch` computes.
void select_blocks(const planning::SelectShape& shape, void* scratch, const Place& place);
void list_rows(const planning::MaskRows& shape, const Place& place);
void list_columns(const planning::MaskColumns& shape, const Place& place);
void transpose_lists(const planning::BsrView& stored, std::int64_t batches,
                     const planning::GpuLists& out, const Place& place);

}  // namespace tessera::cuda
