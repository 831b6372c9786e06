#include "runtime/ops/matmul_op.h"

#include "runtime/ops/checks.h"
#include "runtime/ops/scratch.h"

namespace mxspec {

PackedMatMulOp::PackedMatMulOp(const Attributes& attributes)
    : matrix_(attributes), kind_(kind_attribute(attributes, matrix_.format, "activations")), isa_(usable_isa()) {}

void PackedMatMulOp::compute(Context& context) const {
  const Tensor a = context.input(0);
  const Tensor b = context.input(1);
  const std::optional<Tensor> bias = context.optional_input(2);
  const size_t rank = a.shape.rank();
  if (rank == 0 || a.shape[rank - 1] != matrix_.k) {
    throw_shape("A", a.shape, "[..., K] with K = " + std::to_string(matrix_.k));
  }
  matrix_.check(b);
  if (bias && !(bias->shape == Shape{matrix_.n})) {
    throw_shape("bias", bias->shape, Shape{matrix_.n}.text() + " for N = " + std::to_string(matrix_.n));
  }
  Shape out_shape = a.shape;
  out_shape[rank - 1] = matrix_.n;
  const MatmulShape shape = matrix_.shape(a.shape.size() / matrix_.k);

  const Tensor out = context.output(0, ElementType::kFloat32, out_shape);
  const MatmulOperands operands{a.as<const float>(), b.as<const uint8_t>(), bias ? bias->as<const float>() : nullptr,
                                out.as<float>()};
  const ParallelFor threads = shared_threads();
  next_.begin(threads, b.data, static_cast<size_t>(b.shape.size()));
  matmul(shape, kind_, operands, isa_, scratch(matmul_scratch_bytes(shape, kind_)), threads);
}

}  // namespace mxspec
