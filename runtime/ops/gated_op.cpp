#include "runtime/ops/gated_op.h"

#include <algorithm>

namespace mxspec {
namespace {

// A task has about this many values (some 5 us), so that handing it to another thread costs less than doing it.
constexpr int64_t kValuesPerTask = 8192;

Isa usable_isa() {
  if (!chosen_isa().error.empty()) throw OpError(chosen_isa().error);
  return chosen_isa().isa;
}

}  // namespace

GatedUnit::GatedUnit(GateActivation activation) : gate_(gate_function(activation, usable_isa())) {}

void GatedUnit::compute(Context& context) const {
  const Tensor x = context.input(0);
  const size_t rank = x.shape.rank();
  if (rank == 0 || x.shape[rank - 1] % 2 != 0) {
    throw OpError("x: got shape " + x.shape.text() + ", expected [..., 2n], a gate and as many values to let through");
  }
  Shape shape = x.shape;
  const int64_t n = shape[rank - 1] /= 2;
  const Tensor out = context.output(0, ElementType::kFloat32, shape);
  const int64_t total = shape.size();
  if (total == 0) return;
  const int64_t rows_per_task = std::max<int64_t>(1, kValuesPerTask / n), rows = total / n;
  context.parallel_for((rows + rows_per_task - 1) / rows_per_task, [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * rows_per_task;
    const int64_t last = std::min(rows, first + rows_per_task);
    for (int64_t row = first; row < last; ++row) {
      const float* const gate = x.as<const float>() + row * 2 * n;
      gate_(gate, gate + n, static_cast<size_t>(n), out.as<float>() + row * n);
    }
  });
}

}  // namespace mxspec
