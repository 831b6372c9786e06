#if defined(__x86_64__)
#include "runtime/ops/kernels/lanes_avx512.h"

#include "runtime/ops/kernels/lane_kernels_impl.h"

namespace mxspec {

constinit const LaneKernels kLanesAvx512 = lane_kernels<Avx512Lanes>();

}  // namespace mxspec
#endif
