#if defined(__x86_64__)
#include "runtime/ops/kernels/lanes/bytes_avx2.h"
#include "runtime/ops/kernels/lanes/lane_kernels_impl.h"

namespace mxspec {

constinit const LaneKernels kLanesAvx2 = lane_kernels<Avx2Lanes, Avx2Bytes>();

}  // namespace mxspec
#endif
