#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_avx2_tiles.h"
#include "runtime/ops/kernels/matmul/quantise_avx2.h"

namespace mxspec {
namespace {

struct AddWords {
  static MXSPEC_INLINE void add(__m256i& sum, __m256i weights, __m256i x) {
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(weights, x));
    asm("" : "+x"(sum));  // or GCC adds the products up as a tree, storing them first
  }
};

// Adds up in int16, modulo 2^16, what fits it in the end: of kOfPart quads, two products each, of weights without their
// offset. So one multiplication by ones, which makes int32 of pairs, serves several of the weights.
template <size_t kOfPart, int kLargestWeight>
struct AddBytes {
  static constexpr size_t kQuads = kOfPart;
  static constexpr Starts kStarts = kOfPart == 8 ? Starts::kPair : Starts::kFourPairs;
  static_assert(kOfPart == 8 || kOfPart == 2);
  static_assert(kOfPart * 2 * kLargestWeight * 127 < 32768);

  static MXSPEC_INLINE void add(__m256i& part, __m256i weights, __m256i x) {
    part = _mm256_add_epi16(part, _mm256_maddubs_epi16(weights, x));
    in_order(part);
  }
  static MXSPEC_INLINE __m256i sum(__m256i part) { return _mm256_madd_epi16(part, _mm256_set1_epi16(1)); }
};

template <size_t kRows>
void multiply_fp16(const uint8_t* weights, size_t, size_t, size_t k_count, const float* values, float* out) {
  __m256 acc[kRows][2];
  MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) acc[i / 2][i % 2] = _mm256_loadu_ps(out + i * 8);
  for (size_t first = 0; first < k_count; first += kBlock, values += kRows * kBlock) {
    const size_t count = k_count - first < kBlock ? k_count - first : kBlock;
    for (size_t k = 0; k < count; ++k, weights += kTileRows * 2) {
      const __m256 w0 = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
      if (k % 2 == 0) fetch_line(weights + kBytesAhead);  // two of k are a cache line
      const __m256 w1 = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights + 16)));
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const __m256 x = _mm256_broadcast_ss(values + r * kBlock + k);
        acc[r][0] = _mm256_fmadd_ps(w0, x, acc[r][0]);
        acc[r][1] = _mm256_fmadd_ps(w1, x, acc[r][1]);
      }
    }
  }
  MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) _mm256_storeu_ps(out + i * 8, acc[i / 2][i % 2]);
}

}  // namespace

constinit const RowQuantisers kQuantiseAvx2 = {quantise_row<Avx2Block, int16_t>, quantise_row<Avx2Block, int8_t>};
constinit const MxKernelsByBits kInt16Avx2 = {mx_kernels<4, Words<4>, AddWords, 4, 4>(),
                                              mx_kernels<6, Words<6>, AddWords, 4, 4>(),
                                              mx_kernels<8, Words<8>, AddWords, 4, 4>()};
// 255 * 127 * 2 leaves int16: rows of INT8 stay words.
constinit const MxKernelsByBits kInt8Avx2 = {
    mx_kernels<4, Bytes<4>, AddBytes<8, 12>, 8, 6>(), mx_kernels<6, Bytes<6>, AddBytes<2, 60>, 4, 4>(), {}};
constinit const Fp16Kernels kFp16Avx2 = {
    .most_rows = 4,
    .group_rows = 4,
    .tiles = {0, 1, 1, 1, 1},
    .multiply = {nullptr, multiply_fp16<1>, multiply_fp16<2>, multiply_fp16<3>, multiply_fp16<4>},
};

}  // namespace mxspec
