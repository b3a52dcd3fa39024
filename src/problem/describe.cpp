#include "src/problem/describe.hpp"

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace tessera::planning {
namespace {

class Line {
 public:
  explicit Line(std::string_view begin) {
    text_.reserve(128);
    text_ += begin;
  }
  Line& operator<<(std::string_view words) {
    text_ += words;
    return *this;
  }
  Line& operator<<(std::int64_t number) {
    char digits[20];
    const char* end = std::to_chars(digits, digits + sizeof digits, number).ptr;
    text_.append(digits, static_cast<std::size_t>(end - digits));
    return *this;
  }
  Line& operator<<(DType dtype) { return *this << std::string_view(to_string(dtype)); }
  std::string text() && { return std::move(text_); }

 private:
  std::string text_;
};

void put_times(Line& line, std::int64_t a, std::int64_t b) { line << a << "x" << b; }

void put_converted(Line& line, DType in, DType out) {
  line << in;
  if (in != out) line << "->" << out;
}

std::string_view scale_text(ScaleForm form) {
  switch (form) {
    case ScaleForm::none:
      return "";
    case ScaleForm::tensor:
      return " one scale";
    case ScaleForm::matrix:
      return " scales per matrix";
    case ScaleForm::line:
      return " scales per line";
    case ScaleForm::line_128:
      return " scales 1x128";
    case ScaleForm::block_128:
      return " scales 128x128";
    case ScaleForm::stored_block:
      return " scales per block";
  }
  return "";
}

/// "bf16[4096x1024]", "bsr bf16[4096x1024] T 64x32 stored 512 i32". A batch of 1 is left out.
void put(Line& line, const OperandShape& o) {
  if (o.sparse) line << "bsr ";
  line << o.dtype << "[";
  if (o.batch != 1) line << o.batch << "x";
  put_times(line, o.rows, o.cols);
  line << "]";
  if (o.transposed) line << " T";
  if (o.sparse) {
    line << " ";
    put_times(line, o.block.rows, o.block.cols);
    line << " stored " << o.stored << " " << o.index;
  }
  line << scale_text(o.scale);
}

void put_operands(Line& line, const OperandShape& a, const OperandShape& b) {
  line << " ";
  put(line, a);
  line << " * ";
  put(line, b);
  line << " -> ";
}

/// The layout of an operand, as it decides which GPU kernels support it. Row-major is left out.
void put_layout(Line& line, std::string_view name, const OperandShape& o) {
  const auto say = [&](std::string_view words) { line << " " << name << words; };
  if (!o.tma_readable) say(" unaligned");
  if (o.unit_row_stride) say(o.unit_col_stride ? " flat" : " column-major");
  if (!o.unit_row_stride && !o.unit_col_stride) say(" strided");
  if (!o.pool_fits) say(" spans 64 GiB");
}

template <class Product>
void put_layouts(Line& line, const Product& s) {
  if (s.device.kind != DeviceKind::cuda) return;
  put_layout(line, "a", s.a);
  put_layout(line, "b", s.b);
}

/// What excludes a BLAS; its absence goes unsaid.
std::string_view limit_text(BlasLimit limit) {
  switch (limit) {
    case BlasLimit::none:
      return "";
    case BlasLimit::a:
    case BlasLimit::b:
      return " strided operand";
    case BlasLimit::out:
      return " strided out";
    case BlasLimit::alpha:
      return " alpha 0";
    case BlasLimit::activation:
      return " activation";
    case BlasLimit::c:
      return " other c";
    case BlasLimit::bias:
      return " other bias";
    case BlasLimit::fp8_a:
    case BlasLimit::fp8_b:
      return " operand not along the depth";
    case BlasLimit::fp8_depth:
    case BlasLimit::fp8_out:
    case BlasLimit::fp8_block_sizes:
      return " odd sizes";
    case BlasLimit::fp8_scales:
      return " other scales";
    case BlasLimit::fp8_a_scale:
    case BlasLimit::fp8_b_scale:
      return " strided scales";
  }
  return "";
}

void put(Line& line, const MatmulShape& s) {
  put_operands(line, s.a, s.b);
  line << s.out;
  if (s.grouped) {
    line << " groups " << s.batch << (s.group_axis == GroupAxis::rows ? " of rows" : " of inner");
  } else if (s.batch != 1) {
    line << " batch " << s.batch;
  }
  put_layouts(line, s);
  line << limit_text(s.blas);
}

void put(Line& line, const SddmmShape& s) {
  put_operands(line, s.a, s.b);
  put(line, s.out);
  if (s.batch != 1) line << " batch " << s.batch;
  put_layouts(line, s);
}

void put(Line& line, const SpgemmShape& s) {
  put_operands(line, s.a, s.b);
  line << "bsr";
}

void put_limit(Line& line, std::int64_t width) {
  if (width < 0) {
    line << "inf";
  } else {
    line << width;
  }
}

void put(Line& line, const AttentionShape& s) {
  line << " ";
  put_converted(line, s.dtype, s.out);
  line << " B" << s.batch << " H" << s.heads << "/" << s.kv_heads << " Q" << s.q_length << " KV"
       << s.kv_length << " D" << s.dim << "/" << s.dim_v;
  if (s.q_packed) line << " q packed " << s.q_total;
  if (s.kv_layout == KvLayout::packed) line << " kv packed " << s.kv_total;
  if (s.kv_layout == KvLayout::paged) {
    line << " pages ";
    put_times(line, s.pages, s.page);
    line << " table " << s.max_pages;
  }
  if (s.narrow_kv != DType::none) line << " kv " << s.narrow_kv;
  if (s.has_kv_scales) line << (s.narrow_kv != DType::none ? " scales" : " kv scales");
  if (s.has_q_scale) line << " q scales";
  if (s.causal()) line << " causal";
  // Causal is a right limit of 0; it is not repeated as a window.
  if (s.window_left >= 0 || s.window_right > 0) {
    line << " window(";
    put_limit(line, s.window_left);
    line << ", ";
    put_limit(line, s.window_right);
    line << ")";
  }
  if (s.masked) {
    line << " mask ";
    put_times(line, s.mask_block.rows, s.mask_block.cols);
    line << " lists ";
    if (s.mask_batch != 1 || s.mask_heads != 1) {
      put_times(line, s.mask_batch, s.mask_heads);
      line << "x";
    }
    put_times(line, s.mask_rows, s.mask_capacity);
    if (s.mask_bits) line << " bits";
  }
  if (s.has_kv_range) line << " kv range";
  if (s.transforms_scores) line << (s.softcap > 0 ? " softcap" : " scale <= 0");
  if (s.has_sinks) line << " sinks";
  if (s.has_lse) line << " lse";
  if (s.batch_invariant) line << " batch-invariant";
  if (!s.tma_readable) line << (s.v_by_keys ? " v by keys" : " unaligned");
}

void put(Line& line, const AttentionBackwardShape& s) {
  put(line, static_cast<const AttentionShape&>(s));
  if (s.any_order) line << " any-order";
}

void put(Line& line, const MergeShape& s) {
  line << " " << s.parts << " parts ";
  put_converted(line, s.dtype, s.out);
  line << " B" << s.batch << " L" << s.length << " H" << s.heads << " D" << s.dim;
  if (s.has_sinks) line << " sinks";
}

}  // namespace

std::string describe(const AnyShape& shape) {
  return std::visit(
      [op = op_of(shape)](const auto& s) {
        Line line(to_string(op));
        put(line, s);
        line << (s.device.kind == DeviceKind::cpu ? " on cpu" : " on cuda");
        return std::move(line).text();
      },
      shape);
}

}  // namespace tessera::planning
