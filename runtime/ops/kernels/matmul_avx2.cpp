#if defined(__x86_64__)
#include "runtime/ops/kernels/matmul_kernels.h"

namespace mxspec {

const MatmulKernels& matmul_kernels_avx2() { return matmul_kernels_scalar(); }

}  // namespace mxspec
#endif
