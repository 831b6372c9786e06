#if defined(__x86_64__)
#include "runtime/ops/kernels/lanes/bytes_avx512.h"
#include "runtime/ops/kernels/lanes/lane_kernels_impl.h"

namespace mxspec {

constinit const LaneKernels kLanesAvx512Vnni = lane_kernels<Avx512Lanes, Avx512Bytes>();

}  // namespace mxspec
#endif
