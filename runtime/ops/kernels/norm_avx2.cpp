#if defined(__x86_64__)

#include "runtime/ops/kernels/lanes_avx2.h"
#include "runtime/ops/kernels/norm_impl.h"

namespace mxspec {

void norm_row_avx2(const NormRow& row) { norm_row<Avx2Lanes>(row); }

}  // namespace mxspec

#endif
