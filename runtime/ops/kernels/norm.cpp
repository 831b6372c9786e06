#include "runtime/ops/kernels/norm.h"

#include "runtime/ops/kernels/norm_kernels.h"

namespace mxspec {

NormFunction norm_function([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return norm_row_avx512;
  if (isa == Isa::kAvx2) return norm_row_avx2;
#endif
  return norm_row_scalar;
}

}  // namespace mxspec
