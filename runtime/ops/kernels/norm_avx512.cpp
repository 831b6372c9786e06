#if defined(__x86_64__)

#include "runtime/ops/kernels/lanes_avx512.h"
#include "runtime/ops/kernels/norm_impl.h"

namespace mxspec {

void norm_row_avx512(const NormRow& row) { norm_row<Avx512Lanes>(row); }

}  // namespace mxspec

#endif
