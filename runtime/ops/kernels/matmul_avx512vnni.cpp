#if defined(__x86_64__)
#include "runtime/ops/kernels/matmul_avx512_tiles.h"

namespace mxspec {
namespace {

struct Vnni {
  static MXSPEC_INLINE __m512i add(__m512i sum, __m512i weights, __m512i x) {
    return _mm512_dpwssd_epi32(sum, weights, x);
  }
};

constexpr MatmulKernels kKernels = kernels_avx512<Vnni>(std::make_index_sequence<kMostRows>{});

}  // namespace

const MatmulKernels& matmul_kernels_avx512vnni() { return kKernels; }

}  // namespace mxspec
#endif
