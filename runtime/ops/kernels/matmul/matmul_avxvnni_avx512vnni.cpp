#if defined(__x86_64__)
#include "runtime/ops/kernels/matmul/matmul_avxvnni_kernels.h"

namespace mxspec {
namespace {

struct Vnni {
  static MXSPEC_INLINE __m256i add_words(__m256i sum, __m256i weights, __m256i x) {
    return _mm256_dpwssd_epi32(sum, weights, x);
  }
  static MXSPEC_INLINE __m256i add_bytes(__m256i sum, __m256i weights, __m256i x) {
    return _mm256_dpbusd_epi32(sum, weights, x);
  }
};

}  // namespace

constinit const MxKernelsByBits kInt16AvxVnniOfAvx512 = int16_kernels<Vnni>();
constinit const MxKernelsByBits kInt8AvxVnniOfAvx512 = int8_kernels<Vnni>();

}  // namespace mxspec
#endif
