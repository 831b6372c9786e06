#include "runtime/ops/norm_op.h"

#include <algorithm>
#include <cmath>

namespace mxspec {
namespace {

// A task has about this many values (some 2 us), so that handing it to another thread costs less than doing it.
constexpr int64_t kValuesPerTask = 16384;

void check_vector(const char* name, const Shape& got, const Shape& x) {
  if (got == Shape{x[x.rank() - 1]}) return;
  throw OpError(std::string(name) + ": got shape " + got.text() + ", expected [n] for x " + x.text());
}

float read_epsilon(const Attributes& attributes) {
  const float epsilon = attributes.number("epsilon");
  if (std::isfinite(epsilon) && epsilon >= 0) return epsilon;
  throw OpError("attribute epsilon: got " + std::to_string(epsilon) + ", expected 0 or more");
}

}  // namespace

AddNorm::AddNorm(NormKind kind, const Attributes& attributes)
    : kind_(kind), epsilon_(read_epsilon(attributes)), norm_row_(norm_function(kind, chosen_isa().isa)) {
  if (!chosen_isa().error.empty()) throw OpError(chosen_isa().error);
}

void AddNorm::compute(Context& context) const {
  const Tensor x = context.input(0);
  const Tensor residual = context.input(1);
  const Tensor weight = context.input(2);
  const size_t rank = x.shape.rank();
  if (rank == 0) throw OpError("x: got shape [], expected [..., n]");
  const int64_t n = x.shape[rank - 1];
  if (!(residual.shape == x.shape)) {
    throw OpError("residual: got shape " + residual.shape.text() + ", expected that of x, " + x.shape.text());
  }
  check_vector("weight", weight.shape, x.shape);
  std::optional<Tensor> bias;
  if (kind_ == NormKind::kLayer) bias = context.input(3), check_vector("bias", bias->shape, x.shape);
  const Tensor norm = context.output(0, ElementType::kFloat32, x.shape);
  const Tensor sum = context.output(1, ElementType::kFloat32, x.shape);
  const int64_t values = x.shape.size();
  if (values == 0) return;
  const int64_t rows = values / n, rows_per_task = std::max<int64_t>(1, kValuesPerTask / n);
  context.parallel_for((rows + rows_per_task - 1) / rows_per_task, [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * rows_per_task;
    for (int64_t row = first; row < std::min(rows, first + rows_per_task); ++row) {
      const int64_t at = row * n;
      norm_row_({
          .x = x.as<const float>() + at,
          .residual = residual.as<const float>() + at,
          .weight = weight.as<const float>(),
          .bias = bias ? bias->as<const float>() : nullptr,
          .n = static_cast<size_t>(n),
          .epsilon = epsilon_,
          .norm = norm.as<float>() + at,
          .sum = sum.as<float>() + at,
      });
    }
  });
}

}  // namespace mxspec
