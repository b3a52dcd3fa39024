#pragma once

#include <cstdint>

#include <tessera/bsr.hpp>

#include "src/kernels/cpu/layout.hpp"
#include "src/walk/list_walk.hpp"
#include "src/walk/views.hpp"

namespace tessera::cpu {

using planning::list_batches;

/// The stored blocks of one batch of a BSR matrix, by line: a line is a block row, or, through
/// transposed lists, a block column.
struct BlockLists {
  planning::BsrView lists;
  std::int64_t batch = 0;
  const std::int64_t* positions = nullptr;  // stored position of each entry; null: in order

  planning::BsrRow line(std::int64_t index) const { return lists.row(batch, index); }
  std::int64_t position(std::int64_t entry) const { return positions ? positions[entry] : entry; }
};

/// The lists by row, as stored.
BlockLists lists_by_row(const BsrMatrix& matrix, std::int64_t batch);
/// The lists by column, from buffers that `write_transposed_lists` has filled.
BlockLists lists_by_column(const planning::ListBuffers& lists, const BsrMatrix& matrix,
                           std::int64_t batch);
void write_transposed_lists(const planning::BsrView& stored, std::int64_t batches,
                            const planning::LineLists& out);
void write_transposed_lists(const BsrMatrix& matrix, const planning::ListBuffers& lists);

}  // namespace tessera::cpu
