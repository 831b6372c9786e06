#if defined(__aarch64__)
#include "runtime/ops/kernels/bytes_neon.h"
#include "runtime/ops/kernels/lane_kernels_impl.h"

namespace mxspec {

constinit const LaneKernels kLanesNeonDot = lane_kernels<NeonLanes, NeonBytes>();

}  // namespace mxspec
#endif
