// The AVX2 kernels with the instructions of AVX-VNNI, which come in two encodings, its own and that of AVX-512 VL:
// compiled for both.
#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_avx2_tiles.h"

#if defined(__AVXVNNI__)
#define MXSPEC_VNNI(operation) _mm256_##operation##_avx_epi32
#else
#define MXSPEC_VNNI(operation) _mm256_##operation##_epi32
#endif

namespace mxspec {
namespace {

struct AddWords {
  static MXSPEC_INLINE void add(__m256i& sum, __m256i weights, __m256i x) {
    sum = MXSPEC_VNNI(dpwssd)(sum, weights, x);
  }
};

struct AddBytes {
  static constexpr size_t kQuads = 8;
  static constexpr Starts kStarts = Starts::kSum;

  static MXSPEC_INLINE void add(__m256i& part, __m256i weights, __m256i x) {
    part = MXSPEC_VNNI(dpbusd)(part, weights, x);
  }
  static MXSPEC_INLINE __m256i sum(__m256i part) { return part; }
};

}  // namespace

constinit const MxKernelsByBits MXSPEC_OF_ISA(kInt16) = {mx_kernels<4, Words<4>, AddWords, 4, 4>(),
                                                         mx_kernels<6, Words<6>, AddWords, 4, 4>(),
                                                         mx_kernels<8, Words<8>, AddWords, 4, 4>()};
constinit const MxKernelsByBits MXSPEC_OF_ISA(kInt8) = {mx_kernels<4, Bytes<4>, AddBytes, 8, 6>(),
                                                        mx_kernels<6, Bytes<6>, AddBytes, 8, 6>(),
                                                        mx_kernels<8, Bytes<8>, AddBytes, 8, 6>()};

}  // namespace mxspec
