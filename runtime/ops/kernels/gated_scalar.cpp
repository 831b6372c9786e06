#include "runtime/ops/kernels/gated_impl.h"
#include "runtime/ops/kernels/lanes_scalar.h"

namespace mxspec {

constinit const GateKernels kGatesScalar = gate_kernels<ScalarLanes>();

}  // namespace mxspec
