#if defined(__x86_64__)

#include "runtime/ops/kernels/gated_impl.h"
#include "runtime/ops/kernels/lanes_avx2.h"

namespace mxspec {

constinit const GateKernels kGatesAvx2 = gate_kernels<Avx2Lanes>();

}  // namespace mxspec

#endif
