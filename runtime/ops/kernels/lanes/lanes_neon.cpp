#if defined(__aarch64__)
#include "runtime/ops/kernels/lanes/bytes_neon.h"
#include "runtime/ops/kernels/lanes/lane_kernels_impl.h"

namespace mxspec {

constinit const LaneKernels kLanesNeon = lane_kernels<NeonLanes, NeonBytes>();

}  // namespace mxspec
#endif
