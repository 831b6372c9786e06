#include "runtime/ops/kernels/lanes/bytes_scalar.h"
#include "runtime/ops/kernels/lanes/lane_kernels_impl.h"

namespace mxspec {

constinit const LaneKernels kLanesScalar = lane_kernels<ScalarLanes, ScalarBytes>();

}  // namespace mxspec
