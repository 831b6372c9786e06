#include "runtime/ops/matmul_op.h"

#include "runtime/ops/checks.h"
#include "runtime/ops/scratch.h"

namespace mxspec {
namespace {

// Far beyond any model, and small enough that no product of two of them leaves int64.
constexpr int64_t kMostRowsOrColumns = int64_t{1} << 30;

MatmulKind kind_of(const std::string& format, const std::string& activations) {
  std::string known;
  for (int id = 0; id < formats::kWeightFormatCount; ++id) {
    if (format != formats::kWeightFormats[id].name) {
      known.append(id == 0 ? "" : ", ").append(formats::kWeightFormats[id].name);
      continue;
    }
    if (activations != "int16" && activations != "int8") {
      throw OpError("attribute activations: got \"" + activations + "\", expected int16 or int8");
    }
    const MatmulKind kind{static_cast<WeightFormat>(id),
                          activations == "int8" ? Activations::kInt8 : Activations::kInt16};
    if (kind.possible()) return kind;
    throw OpError("attribute activations: got int8 with format " + format + ", which takes int16 only");
  }
  throw OpError("attribute format: got \"" + format + "\", expected one of " + known);
}

int64_t size_attribute(const Attributes& attributes, const char* name) {
  const int64_t size = attributes.integer(name);
  if (size >= 1 && size <= kMostRowsOrColumns) return size;
  throw OpError(std::string("attribute ") + name + ": got " + std::to_string(size) + ", expected 1 to 2^30");
}

}  // namespace

PackedMatMulOp::PackedMatMulOp(const Attributes& attributes)
    : k_(size_attribute(attributes, "K")),
      n_(size_attribute(attributes, "N")),
      kind_(kind_of(attributes.text("format"), attributes.text("activations", "int16"))),
      isa_(usable_isa()) {}

void PackedMatMulOp::compute(Context& context) const {
  const Tensor a = context.input(0);
  const Tensor b = context.input(1);
  const std::optional<Tensor> bias = context.optional_input(2);
  const size_t rank = a.shape.rank();
  if (rank == 0 || a.shape[rank - 1] != k_) {
    throw_shape("A", a.shape, "[..., K] with K = " + std::to_string(k_));
  }
  Shape out_shape = a.shape;
  out_shape[rank - 1] = n_;
  const MatmulShape shape{static_cast<size_t>(a.shape.size() / k_), static_cast<size_t>(n_), static_cast<size_t>(k_)};
  const Shape packed{static_cast<int64_t>(shape.row_tiles()), static_cast<int64_t>(shape.row_tile_bytes(kind_.format))};
  if (!(b.shape == packed)) {
    throw_shape("B", b.shape, packed.text() + " for N = " + std::to_string(n_) + ", K = " + std::to_string(k_));
  }
  if (bias && !(bias->shape == Shape{n_})) {
    throw_shape("bias", bias->shape, Shape{n_}.text() + " for N = " + std::to_string(n_));
  }

  const Tensor out = context.output(0, ElementType::kFloat32, out_shape);
  const MatmulOperands operands{a.as<const float>(), b.as<const uint8_t>(), bias ? bias->as<const float>() : nullptr,
                                out.as<float>()};
  matmul(shape, kind_, operands, isa_, scratch(matmul_scratch_bytes(shape, kind_)), shared_threads());
}

}  // namespace mxspec
