#if defined(__aarch64__)

#include "runtime/ops/kernels/lanes_neon.h"
#include "runtime/ops/kernels/norm_impl.h"

namespace mxspec {

constinit const NormKernels kNormsNeon = norm_kernels<NeonLanes>();

}  // namespace mxspec

#endif
