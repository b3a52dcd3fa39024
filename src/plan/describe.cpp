#include <string>

#include "src/plan/select.hpp"

// One line that names all that a kernel choice may depend on: a plan made for one problem fits
// another exactly where their lines are equal.
namespace tessera::planning {
namespace {

std::string number(std::int64_t value) { return std::to_string(value); }

std::string times(std::int64_t a, std::int64_t b) { return number(a) + "x" + number(b); }

std::string converted(DType in, DType out) {
  return in == out ? to_string(in) : std::string(to_string(in)) + "->" + to_string(out);
}

/// "bf16[4096x1024]", "bsr bf16[4096x1024] T 64x32 stored 512 i32"; a batch of one goes unsaid.
std::string text(const OperandShape& o) {
  std::string line = o.sparse ? "bsr " : "";
  line += std::string(to_string(o.dtype)) + "[";
  if (o.batch != 1) line += number(o.batch) + "x";
  line += times(o.rows, o.cols) + "]";
  if (o.transposed) line += " T";
  if (o.sparse) {
    line += " " + times(o.block.rows, o.block.cols) + " stored " + number(o.stored) + " " +
            to_string(o.index);
  }
  return line;
}

/// What TMA can read decides which kernels a GPU may run.
template <class Product>
std::string alignment(const Product& s) {
  std::string words;
  if (s.device.kind != DeviceKind::cuda) return words;
  if (!s.a.tma_readable) words += " a unaligned";
  if (!s.b.tma_readable) words += " b unaligned";
  return words;
}

std::string text(const MatmulShape& s) {
  std::string line = " " + text(s.a) + " * " + text(s.b) + " -> " + to_string(s.out);
  if (s.grouped) {
    line += std::string(" groups ") + number(s.batch) +
            (s.group_axis == GroupAxis::rows ? " of rows" : " of inner");
  } else if (s.batch != 1) {
    line += " batch " + number(s.batch);
  }
  return line + alignment(s);
}

std::string text(const SddmmShape& s) {
  std::string line = " " + text(s.a) + " * " + text(s.b) + " -> " + text(s.out);
  if (s.batch != 1) line += " batch " + number(s.batch);
  return line + alignment(s);
}

std::string text(const SpgemmShape& s) { return " " + text(s.a) + " * " + text(s.b) + " -> bsr"; }

std::string text(const AttentionShape& s) {
  const auto limit = [](std::int64_t width) { return width < 0 ? "inf" : number(width); };
  std::string line = " " + converted(s.dtype, s.out) + " B" + number(s.batch) + " H" +
                     number(s.heads) + "/" + number(s.kv_heads) + " Q" + number(s.q_length) +
                     " KV" + number(s.kv_length) + " D" + number(s.dim) + "/" + number(s.dim_v);
  if (s.q_packed) line += " q packed " + number(s.q_total);
  if (s.kv_layout == KvLayout::packed) line += " kv packed " + number(s.kv_total);
  if (s.kv_layout == KvLayout::paged) {
    line += " pages " + times(s.pages, s.page) + " table " + number(s.max_pages);
  }
  if (s.causal) line += " causal";
  // Causal is a right limit of 0, said once.
  if (s.window_left >= 0 || (s.window_right >= 0 && !(s.causal && s.window_right == 0))) {
    line += " window(" + limit(s.window_left) + ", " + limit(s.window_right) + ")";
  }
  if (s.masked) {
    line += " mask " + times(s.mask_block.rows, s.mask_block.cols) + " lists ";
    if (s.mask_batch != 1 || s.mask_heads != 1) line += times(s.mask_batch, s.mask_heads) + "x";
    line += times(s.mask_rows, s.mask_capacity);
    // A GPU's plan has room for lists that are composed of these.
    if (s.device.kind == DeviceKind::cuda && s.mask_bits) line += " bits";
  }
  if (s.softcap != 0) line += " softcap";
  if (s.has_sinks) line += " sinks";
  if (s.has_lse) line += " lse";
  // The CPU reads any address: there, a plan serves tensors anywhere.
  if (s.device.kind == DeviceKind::cuda && !s.tma_readable) line += " unaligned";
  return line;
}

std::string text(const MergeShape& s) {
  return " " + number(s.parts) + " parts " + converted(s.dtype, s.out) + " B" + number(s.batch) +
         " L" + number(s.length) + " H" + number(s.heads) + " D" + number(s.dim) +
         (s.has_sinks ? " sinks" : "");
}

}  // namespace

std::string describe(Op op, const AnyShape& shape) {
  return std::visit(
      [op](const auto& s) {
        const char* place = s.device.kind == DeviceKind::cpu ? " on cpu" : " on cuda";
        return to_string(op) + text(s) + place;
      },
      shape);
}

}  // namespace tessera::planning
