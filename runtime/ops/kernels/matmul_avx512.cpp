#if defined(__x86_64__)
#include "runtime/ops/kernels/matmul_avx512_tiles.h"

namespace mxspec {
namespace {

struct MaddAdd {
  static MXSPEC_INLINE __m512i add(__m512i sum, __m512i weights, __m512i x) {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(weights, x));
    asm("" : "+v"(sum));  // or GCC adds the products up as a tree, and stores them all until then
    return sum;
  }
};

constexpr MatmulKernels kKernels = kernels_avx512<MaddAdd>(std::make_index_sequence<kMostRows>{});

}  // namespace

const MatmulKernels& matmul_kernels_avx512() { return kKernels; }

}  // namespace mxspec
#endif
