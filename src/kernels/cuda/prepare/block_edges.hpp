#pragma once

#include "src/walk/block_edges.hpp"
#include "src/walk/sequence.hpp"

namespace tessera::cuda {

/// Writes which key tiles and blocks of queries meet in a composed mask, and which of their keys
/// and queries see each other, on the current device. The composed lists must have been written
/// earlier in the stream.
void write_block_edges(const planning::BlockEdges& edges, const planning::SequenceView& sequences,
                       void* stream);

}  // namespace tessera::cuda
