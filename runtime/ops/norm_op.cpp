#include "runtime/ops/norm_op.h"

#include <cmath>

#include "runtime/ops/checks.h"

namespace mxspec {
namespace {

// A task has about this many values (some 2 us), so that handing it to another thread costs less than doing it.
constexpr int64_t kValuesPerTask = 16384;

void check_vector(const char* name, const Shape& got, const Shape& x) {
  if (!(got == Shape{x[x.rank() - 1]})) throw_shape(name, got, "[n] for x " + x.text());
}

float read_epsilon(const Attributes& attributes) {
  const float epsilon = attributes.number("epsilon");
  if (std::isfinite(epsilon) && epsilon >= 0) return epsilon;
  throw OpError("attribute epsilon: got " + std::to_string(epsilon) + ", expected 0 or more");
}

}  // namespace

AddNorm::AddNorm(NormKind kind, const Attributes& attributes)
    : kind_(kind), epsilon_(read_epsilon(attributes)), norm_row_(norm_function(kind, usable_isa())) {}

void AddNorm::compute(Context& context) const {
  const Tensor x = context.input(0);
  const Tensor residual = context.input(1);
  const Tensor weight = context.input(2);
  const size_t rank = x.shape.rank();
  if (rank == 0) throw_shape("x", x.shape, "[..., n]");
  const int64_t n = x.shape[rank - 1];
  if (!(residual.shape == x.shape)) throw_shape("residual", residual.shape, "that of x, " + x.shape.text());
  check_vector("weight", weight.shape, x.shape);
  std::optional<Tensor> bias;
  if (kind_ == NormKind::kLayer) {
    bias = context.input(3);
    check_vector("bias", bias->shape, x.shape);
  }
  const Tensor norm = context.output(0, ElementType::kFloat32, x.shape);
  const Tensor sum = context.output(1, ElementType::kFloat32, x.shape);
  const int64_t values = x.shape.size();
  if (values == 0) return;
  context.parallel_rows(values / n, n, kValuesPerTask, [&](int64_t row) {
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
  });
}

}  // namespace mxspec
