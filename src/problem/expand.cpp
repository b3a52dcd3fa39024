#include "src/problem/expand.hpp"

#include <limits>

#include "src/problem/pool_rules.hpp"

namespace tessera::planning {
namespace {

/// A dense copy of the matrices of a sparse operand, as stored. Strides count elements.
struct Copy {
  std::int64_t rows = 0, cols = 0;
  std::int64_t pitch = 0, matrix = 0;  // from line to line; from matrix to matrix
  std::int64_t elements = 0;           // saturates
};

/// a * b, saturating.
std::int64_t times(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}

Copy copy_of(const OperandShape& o, Order order) {
  Copy copy{.rows = o.transposed ? o.cols : o.rows, .cols = o.transposed ? o.rows : o.cols};
  const bool by_rows = order == Order::rows;
  const std::int64_t bytes = size_of(o.dtype);
  copy.pitch = core::align_up((by_rows ? copy.cols : copy.rows) * bytes, kTmaAlignment) / bytes;
  copy.matrix = times(by_rows ? copy.rows : copy.cols, copy.pitch);
  copy.elements = times(copy.matrix, o.batch);
  return copy;
}

std::int64_t copy_bytes(const OperandShape& o, const std::optional<Order>& order) {
  if (!order) return 0;
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t bytes = times(copy_of(o, *order).elements, size_of(o.dtype));
  return bytes > kMost - core::kBufferAlignment ? kMost : core::align_up(bytes);
}

void expand(Operand& operand, const OperandShape& o, const std::optional<Order>& order,
            std::byte* data) {
  if (!order) return;
  const Copy copy = copy_of(o, *order);
  const std::int64_t row = *order == Order::rows ? copy.pitch : 1;
  const std::int64_t col = *order == Order::rows ? 1 : copy.pitch;
  const Device device = operand.sparse.values.device;
  operand.sparse = {};
  operand.dense = o.batch == 1 ? tensor(data, o.dtype, {copy.rows, copy.cols}, {row, col}, device)
                               : tensor(data, o.dtype, {o.batch, copy.rows, copy.cols},
                                        {copy.matrix, row, col}, device);
}

void expand(OperandShape& o, const std::optional<Order>& order, DeviceKind device) {
  if (!order) return;
  o.sparse = false;
  o.block = {};
  o.stored = 0;
  o.index = DType::none;
  o.pool_fits = device == DeviceKind::cpu || copy_bytes(o, order) <= kMaxPoolBytes;
  o.tma_readable = true;
  if (device == DeviceKind::cpu) return;  // plans of the CPU do not depend on the layout
  o.unit_row_stride = *order == Order::columns;
  o.unit_col_stride = *order == Order::rows;
}

}  // namespace

std::vector<Expansion> expansions_of(const MatmulShape& s) {
  const auto orders = [&](const OperandShape& o) -> std::vector<std::optional<Order>> {
    const bool on_gpu = s.device.kind == DeviceKind::cuda;
    // A dense copy has no stored blocks, whose factors would have to multiply it.
    if (!o.sparse || o.scale == ScaleForm::stored_block ||
        (on_gpu && times(o.block.rows, o.block.cols) > kMaxBlockElements))
      return {std::nullopt};
    return {std::nullopt, Order::rows, Order::columns};
  };
  std::vector<Expansion> one, two;
  for (const auto& a : orders(s.a)) {
    for (const auto& b : orders(s.b)) {
      if (a || b) (a && b ? two : one).push_back({a, b});
    }
  }
  one.insert(one.end(), two.begin(), two.end());
  return one;
}

std::int64_t copy_bytes(const MatmulShape& shape, const Expansion& expansion) {
  std::int64_t bytes = 0;
  return __builtin_add_overflow(copy_bytes(shape.a, expansion.a), copy_bytes(shape.b, expansion.b),
                                &bytes)
             ? std::numeric_limits<std::int64_t>::max()
             : bytes;
}

ExpandedSchedule carve_expanded(core::Carver& carver, const MatmulShape& shape,
                                const Expansion& expansion, std::int64_t dense_bytes) {
  const bool on_host = shape.device.kind == DeviceKind::cpu;
  return {.mark = carver.add<std::byte>(on_host ? core::kScheduleMarkBytes : 0),
          .a = carver.add<std::byte>(copy_bytes(shape.a, expansion.a)),
          .b = carver.add<std::byte>(copy_bytes(shape.b, expansion.b)),
          .dense = carver.add<std::byte>(dense_bytes)};
}

MatmulProblem expanded_problem(const MatmulProblem& problem, const MatmulShape& shape,
                               const Expansion& expansion, const ExpandedSchedule& schedule) {
  MatmulProblem expanded = problem;
  expand(expanded.a, shape.a, expansion.a, schedule.a);
  expand(expanded.b, shape.b, expansion.b, schedule.b);
  return expanded;
}

MatmulShape expanded_shape(const MatmulProblem& expanded, MatmulShape shape,
                           const Expansion& expansion) {
  expand(shape.a, expansion.a, shape.device.kind);
  expand(shape.b, expansion.b, shape.device.kind);
  if (shape.device.kind == DeviceKind::cuda) set_blas_limit(expanded, shape);
  return shape;
}

}  // namespace tessera::planning
