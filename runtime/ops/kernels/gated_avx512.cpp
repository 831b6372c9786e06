#if defined(__x86_64__)

#include "runtime/ops/kernels/gated_impl.h"
#include "runtime/ops/kernels/lanes_avx512.h"

namespace mxspec {

constinit const GateKernels kGatesAvx512 = gate_kernels<Avx512Lanes>();

}  // namespace mxspec

#endif
