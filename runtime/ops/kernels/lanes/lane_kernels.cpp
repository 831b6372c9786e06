#include "runtime/ops/kernels/lanes/lane_kernels.h"

namespace mxspec {

const LaneKernels& lane_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512Vnni) return kLanesAvx512Vnni;
  if (isa >= Isa::kAvx512) return kLanesAvx512;
  if (isa >= Isa::kAvx2) return kLanesAvx2;
#elif defined(__aarch64__)
  if (isa >= Isa::kNeonDot) return kLanesNeonDot;
  if (isa >= Isa::kNeon) return kLanesNeon;
#endif
  return kLanesScalar;
}

}  // namespace mxspec
