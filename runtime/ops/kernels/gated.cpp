#include "runtime/ops/kernels/gated.h"

#include "runtime/ops/kernels/lanes/lane_kernels.h"

namespace mxspec {

GateFunction gate_function(GateActivation activation, Isa isa) {
  const auto& kernels = lane_kernels(isa).gates;
  switch (activation) {
    case GateActivation::kSilu:
      return kernels.silu;
    case GateActivation::kGeluTanh:
      return kernels.gelu_tanh;
    case GateActivation::kClampedSwiGlu:
      break;
  }
  return kernels.clamped_swiglu;
}

}  // namespace mxspec
