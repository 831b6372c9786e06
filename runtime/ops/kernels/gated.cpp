#include "runtime/ops/kernels/gated.h"

#include "runtime/ops/kernels/lane_kernels.h"

namespace mxspec {

GateFunction gate_function(GateActivation activation, Isa isa) {
  const auto& kernels = lane_kernels(isa).gates;
  return activation == GateActivation::kSilu ? kernels.silu : kernels.gelu_tanh;
}

}  // namespace mxspec
