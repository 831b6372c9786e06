#if defined(__x86_64__)

#include "runtime/ops/kernels/lanes_avx2.h"
#include "runtime/ops/kernels/norm_impl.h"

namespace mxspec {

constinit const NormKernels kNormsAvx2 = norm_kernels<Avx2Lanes>();

}  // namespace mxspec

#endif
