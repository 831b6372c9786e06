#include "runtime/ops/gated_op.h"

#include "runtime/ops/checks.h"

namespace mxspec {
namespace {

// A task has about this many values (some 5 us), so that handing it to another thread costs less than doing it.
constexpr int64_t kValuesPerTask = 8192;

}  // namespace

GatedUnit::GatedUnit(GateActivation activation) : gate_(gate_function(activation, usable_isa())) {}

void GatedUnit::compute(Context& context) const {
  const Tensor x = context.input(0);
  const size_t rank = x.shape.rank();
  if (rank == 0 || x.shape[rank - 1] % 2 != 0) {
    throw_shape("x", x.shape, "[..., 2n], a gate and as many values to let through");
  }
  Shape shape = x.shape;
  const int64_t n = shape[rank - 1] /= 2;
  const Tensor out = context.output(0, ElementType::kFloat32, shape);
  const int64_t total = shape.size();
  if (total == 0) return;
  context.parallel_rows(total / n, n, kValuesPerTask, [&](int64_t row) {
    const float* const gate = x.as<const float>() + row * 2 * n;
    gate_(gate, gate + n, static_cast<size_t>(n), {}, out.as<float>() + row * n);
  });
}

}  // namespace mxspec
