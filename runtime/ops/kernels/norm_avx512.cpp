#if defined(__x86_64__)

#include "runtime/ops/kernels/lanes_avx512.h"
#include "runtime/ops/kernels/norm_impl.h"

namespace mxspec {

constinit const NormKernels kNormsAvx512 = norm_kernels<Avx512Lanes>();

}  // namespace mxspec

#endif
