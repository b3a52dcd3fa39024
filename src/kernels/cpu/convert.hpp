#pragma once

#include <cstdint>

#include "src/walk/conversions.hpp"

// Conversions in host memory. Lists have been checked before.
namespace tessera::cpu {

void to_dense(const planning::BlockCopy& copy);
void gather_blocks(const planning::BlockCopy& copy);
void block_norms(const planning::NormsShape& shape);
void select_blocks(const planning::SelectShape& shape);
void list_rows(const planning::MaskRows& shape);
void list_columns(const planning::MaskColumns& shape);

}  // namespace tessera::cpu
