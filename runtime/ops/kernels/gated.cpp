#include "runtime/ops/kernels/gated.h"

#include "runtime/ops/kernels/gated_kernels.h"

namespace mxspec {
namespace {

const GateKernels& kernels_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return kGatesAvx512;
  if (isa == Isa::kAvx2) return kGatesAvx2;
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return kGatesNeon;
#endif
  return kGatesScalar;
}

}  // namespace

GateFunction gate_function(GateActivation activation, Isa isa) {
  const GateKernels& kernels = kernels_for(isa);
  return activation == GateActivation::kSilu ? kernels.silu : kernels.gelu_tanh;
}

}  // namespace mxspec
