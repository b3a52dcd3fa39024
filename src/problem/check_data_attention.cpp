#include <vector>

#include "src/core/check_lists.hpp"
#include "src/problem/shape.hpp"

namespace tessera::planning {

using namespace core;  // the checks

namespace {

void check_attention_pointers(const Where& op, const AttentionProblem& problem) {
  check_pointers(op, {{"q", problem.q},
                      {"k", problem.k},
                      {"v", problem.v},
                      {"out", problem.out},
                      {"lse", problem.lse},
                      {"sinks", problem.sinks},
                      {"q_offsets", problem.q_offsets},
                      {"kv_offsets", problem.kv_offsets},
                      {"kv_begin", problem.kv_begin},
                      {"kv_end", problem.kv_end},
                      {"q_position", problem.q_position},
                      {"kv_position", problem.kv_position},
                      {"page_table", problem.page_table},
                      {"q_scale", problem.q_scale},
                      {"k_scale", problem.k_scale},
                      {"v_scale", problem.v_scale}});
  check_pointers(op / "mask", problem.mask);
}

void check_pages(const Where& where, const Tensor& table, const AttentionShape& shape,
                 std::int64_t sequence, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  for (std::int64_t j = begin / shape.page; j * shape.page < end; ++j) {
    const std::int64_t page = read_entry(table, sequence * table.stride(0), j);
    if (page < 0 || page >= shape.pages) {
      refuse(where, words("pages in [0, ", shape.pages, ")"),
             words(page, " for page ", j, " of sequence ", sequence));
    }
  }
}

// Checks that the valid keys of each sequence lie inside the sequence, and that their pages exist.
void check_key_ranges(const Where& op, const AttentionProblem& problem,
                      const AttentionShape& shape) {
  if (!problem.kv_begin && !problem.kv_end) return;
  const bool bounded = problem.page_table && problem.max_kv_length > 0;
  const char* of = bounded                              ? ", max_kv_length"
                   : shape.kv_layout == KvLayout::paged ? ", the capacity of the page table"
                                                        : ", the length of the sequence";
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t length = problem.kv_offsets ? read_entry(problem.kv_offsets, 0, b + 1) -
                                                         read_entry(problem.kv_offsets, 0, b)
                                : bounded ? problem.max_kv_length
                                          : shape.kv_length;
    const std::int64_t end = problem.kv_end ? read_entry(problem.kv_end, 0, b) : length;
    if (end < 0 || end > length) {
      refuse(op / "kv_end", words("0 to ", length, of), words(end, " for sequence ", b));
    }
    const std::int64_t begin = problem.kv_begin ? read_entry(problem.kv_begin, 0, b) : 0;
    if (begin < 0 || begin > end) {
      refuse(op / "kv_begin", words("0 to ", end, ", the end of the valid keys"),
             words(begin, " for sequence ", b));
    }
    if (problem.page_table)
      check_pages(op / "page_table", problem.page_table, shape, b, begin, end);
  }
}

// The length of each sequence, or one length for all.
std::vector<std::int64_t> q_lengths(const AttentionProblem& problem, const AttentionShape& shape) {
  if (!problem.q_offsets) return {shape.q_length};
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    lengths.push_back(read_entry(problem.q_offsets, 0, b + 1) -
                      read_entry(problem.q_offsets, 0, b));
  }
  return lengths;
}

void check_positions(const Where& where, const Tensor& positions) {
  if (!positions) return;
  for (std::int64_t b = 0; b < positions.size(0); ++b) {
    const std::int64_t position = read_entry(positions, 0, b);
    if (position < -kMaxSize || position > kMaxSize) {
      refuse(where, "positions -2^60 to 2^60", words(position, " for sequence ", b));
    }
  }
}

void check_attention_data(const Where& op, const AttentionProblem& problem,
                          const AttentionShape& shape) {
  check_attention_pointers(op, problem);
  if (shape.device.kind != DeviceKind::cpu) return;
  const auto check_packing = [&](const char* name, const Tensor& list, std::int64_t total,
                                 std::int64_t longest) {
    OffsetsRule rule;
    rule.total = total;
    rule.longest = longest;
    if (list) check_offsets(op / name, list, 0, shape.batch, rule);
  };
  check_packing("q_offsets", problem.q_offsets, shape.q_total, shape.q_length);
  check_packing("kv_offsets", problem.kv_offsets, shape.kv_total, shape.kv_length);
  check_key_ranges(op, problem, shape);
  check_positions(op / "q_position", problem.q_position);
  check_positions(op / "kv_position", problem.kv_position);
  if (shape.masked) {
    check_mask_lists(op / "mask", problem.mask, q_lengths(problem, shape), shape.kv_length);
  }
}

}  // namespace

void check_data(const AttentionProblem& problem, const AttentionShape& shape) {
  check_attention_data(Where("attention"), problem, shape);
}

void check_data(const AttentionBackwardProblem& problem, const AttentionShape& shape) {
  const Where op("attention_backward");
  check_attention_data(op / "forward", problem.forward, shape);
  check_pointers(op, {{"dout", problem.dout},
                      {"dlse", problem.dlse},
                      {"dq", problem.dq},
                      {"dk", problem.dk},
                      {"dv", problem.dv},
                      {"dsinks", problem.dsinks}});
}

}  // namespace tessera::planning
