#include "runtime/ops/experts_op.h"

#include <cmath>

#include "runtime/ops/checks.h"
#include "runtime/ops/experts_counts.h"
#include "runtime/ops/packed_matrix.h"
#include "runtime/ops/scratch.h"

namespace mxspec {
namespace {

std::string equals(const char* name, int64_t value) { return std::string(name) + " = " + std::to_string(value); }

GateActivation activation_attribute(const Attributes& attributes) {
  const std::string name = attributes.text("activation");
  if (name == "silu") return GateActivation::kSilu;
  if (name == "gelu_tanh") return GateActivation::kGeluTanh;
  if (name == "clamped_swiglu") return GateActivation::kClampedSwiGlu;
  throw OpError("attribute activation: got \"" + name + "\", expected silu, gelu_tanh or clamped_swiglu");
}

GateConstants constants_attributes(const Attributes& attributes) {
  const GateConstants constants{attributes.number("alpha", GateConstants{}.alpha),
                                attributes.number("limit", GateConstants{}.limit)};
  if (!std::isfinite(constants.alpha)) {
    throw OpError("attribute alpha: got " + std::to_string(constants.alpha) + ", expected a finite number");
  }
  if (!(constants.limit >= 0)) {
    throw OpError("attribute limit: got " + std::to_string(constants.limit) + ", expected 0 or more");
  }
  return constants;
}

bool alternating_attribute(const Attributes& attributes) {
  const int64_t alternating = attributes.integer("alternating", 0);
  if (alternating == 0 || alternating == 1) return alternating == 1;
  throw OpError("attribute alternating: got " + std::to_string(alternating) + ", expected 0 or 1");
}

ExpertsKind kind_attributes(const Attributes& attributes) {
  return {kind_attribute(attributes, format_attribute(attributes, "format"), "activations"),
          kind_attribute(attributes, format_attribute(attributes, "down_format"), "down_activations"),
          activation_attribute(attributes), constants_attributes(attributes), alternating_attribute(attributes)};
}

// The shape of `of` but for its last dimension.
Shape with_last(const Shape& of, int64_t last) {
  Shape shape = of;
  shape[shape.rank() - 1] = last;
  return shape;
}

// An input, or nullptr; throws where it has another shape.
const float* bias_of(const std::optional<Tensor>& bias, const char* name, const Shape& expected, const char* sizes) {
  if (!bias) return nullptr;
  if (!(bias->shape == expected)) throw_shape(name, bias->shape, expected.text() + " for [E, " + sizes + "]");
  return bias->as<const float>();
}

}  // namespace

PackedExpertsOp::PackedExpertsOp(const Attributes& attributes)
    : k_(size_attribute(attributes, "K")),
      n_(size_attribute(attributes, "N")),
      experts_(size_attribute(attributes, "experts")),
      inner_(size_attribute(attributes, "inner")),
      kind_(kind_attributes(attributes)),
      isa_(usable_isa()) {
  constexpr int64_t kRows = formats::kTileRows;  // an expert begins with a row tile
  if (2 * inner_ % kRows != 0) {
    throw OpError("attribute inner: got " + std::to_string(inner_) + ", expected a multiple of 8");
  }
  if (n_ % kRows != 0) throw OpError("attribute N: got " + std::to_string(n_) + ", expected a multiple of 16");
}

void PackedExpertsOp::compute(Context& context) const {
  const Tensor x = context.input(0);
  const Tensor chosen = context.input(1);
  const Tensor weights = context.input(2);
  const Tensor gate_up = context.input(3);
  const Tensor down = context.input(4);
  const size_t rank = x.shape.rank();
  if (rank == 0 || x.shape[rank - 1] != k_) throw_shape("x", x.shape, "[..., K] with " + equals("K", k_));
  if (chosen.shape.rank() != rank || !(with_last(chosen.shape, k_) == x.shape)) {
    throw_shape("chosen", chosen.shape, "that of x, " + x.shape.text() + ", but for the last dimension");
  }
  if (!(weights.shape == chosen.shape)) throw_shape("weights", weights.shape, "that of chosen, " + chosen.shape.text());
  const std::string of_experts = equals("experts", experts_) + ", " + equals("inner", inner_) + ", ";
  check_packed("gate_up", gate_up, kind_.gate_up.format, experts_ * 2 * inner_, k_, of_experts + equals("K", k_));
  check_packed("down", down, kind_.down.format, experts_ * n_, inner_, of_experts + equals("N", n_));
  const float* const gate_up_bias =
      bias_of(context.optional_input(5), "gate_up_bias", {experts_, 2 * inner_}, "2 * inner");
  const float* const down_bias = bias_of(context.optional_input(6), "down_bias", {experts_, n_}, "N");
  const auto* const ids = chosen.as<const int64_t>();
  for (int64_t i = 0; i < chosen.shape.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < experts_) continue;
    throw OpError("chosen: got " + std::to_string(ids[i]) + ", expected 0 to " + std::to_string(experts_ - 1));
  }

  const Tensor out = context.output(0, ElementType::kFloat32, with_last(x.shape, n_));
  const ExpertsShape shape{.rows = static_cast<size_t>(x.shape.size() / k_),
                           .top_k = static_cast<size_t>(chosen.shape[rank - 1]),
                           .experts = static_cast<size_t>(experts_),
                           .k = static_cast<size_t>(k_),
                           .inner = static_cast<size_t>(inner_),
                           .n = static_cast<size_t>(n_)};
  const ExpertsOperands operands{.x = x.as<const float>(),
                                 .weights = weights.as<const float>(),
                                 .gate_up = gate_up.as<const uint8_t>(),
                                 .down = down.as<const uint8_t>(),
                                 .gate_up_bias = gate_up_bias,
                                 .down_bias = down_bias,
                                 .out = out.as<float>()};
  const Routing routing(ids, shape);
  ExpertsCounts::of_process().add(shape.rows, routing.groups.size());
  const ExpertsCall call(shape, kind_, operands, routing, isa_, scratch);
  const ParallelFor threads = shared_threads();
  call.gate_up(threads);
  next_.begin(threads, nullptr, 0);  // which experts are read is not known before
  call.down(threads);
}

}  // namespace mxspec
