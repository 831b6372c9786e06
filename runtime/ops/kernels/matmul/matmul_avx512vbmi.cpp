#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_avx512_tiles.h"

namespace mxspec {
namespace {

struct AddBytes {
  static MXSPEC_INLINE __m512i add(__m512i sum, __m512i weights, __m512i x) {
    return _mm512_dpbusd_epi32(sum, weights, x);
  }
};

}  // namespace

constinit const MxKernelsByBits kInt8Avx512Vbmi = {mx_kernels<4, BytesOfVbmi, AddBytes>(),
                                                   mx_kernels<6, BytesOfVbmi, AddBytes>(),
                                                   mx_kernels<8, BytesOfInt8, AddBytes>()};

}  // namespace mxspec
