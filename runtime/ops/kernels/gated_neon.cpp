#if defined(__aarch64__)

#include "runtime/ops/kernels/gated_impl.h"
#include "runtime/ops/kernels/lanes_neon.h"

namespace mxspec {

constinit const GateKernels kGatesNeon = gate_kernels<NeonLanes>();

}  // namespace mxspec

#endif
