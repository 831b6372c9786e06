#if defined(__x86_64__)
#include <immintrin.h>

#include "runtime/ops/kernels/activations.h"

namespace mxspec {

RowKind quantise_row_avx2(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales) {
  return quantise_row_scalar(row, k, unit_exponent, rows, q, scales);
}

}  // namespace mxspec
#endif
