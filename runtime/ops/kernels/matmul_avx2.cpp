#if defined(__x86_64__)
#include <immintrin.h>

#include "runtime/ops/kernels/matmul_kernels.h"

namespace mxspec {
namespace {

#define MXSPEC_UNROLL _Pragma("GCC unroll 16")

inline __m256i load(const void* bytes) { return _mm256_loadu_si256(static_cast<const __m256i*>(bytes)); }

// Weights are asked for this early.
constexpr size_t kBytesAhead = 3072;
inline void fetch(const uint8_t* bytes) {
  _mm_prefetch(reinterpret_cast<const char*>(bytes + kBytesAhead), _MM_HINT_T0);
}

// Sixteen codes, each in the low 6 bits of a lane, to int16. Two byte look-ups give the magnitudes 0..15 and 16..31.
struct Decoder {
  __m256i low, high;
  __m128i high_shift;

  explicit Decoder(const Mxfp6Element& element)
      : low(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(element.low)))),
        high(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(element.high)))),
        high_shift(_mm_cvtsi32_si128(element.high_shift)) {}

  __m256i operator()(__m256i codes) const {
    const __m256i top = _mm256_slli_epi16(codes, 10);  // the sign is the top bit, the magnitude below it
    // A set top bit in the upper byte of each lane makes that byte 0.
    const __m256i index = _mm256_or_si256(_mm256_and_si256(codes, _mm256_set1_epi16(15)), _mm256_set1_epi16(-0x8000));
    const __m256i is_high = _mm256_srai_epi16(_mm256_slli_epi16(codes, 11), 15);
    const __m256i large = _mm256_sll_epi16(_mm256_shuffle_epi8(high, index), high_shift);
    const __m256i magnitude = _mm256_blendv_epi8(_mm256_shuffle_epi8(low, index), large, is_high);
    return _mm256_sign_epi16(magnitude, top);  // 0 only where the code is 0
  }
};

// Half a tile (matmul_scalar.cpp has the picture), 16 of its 32 lanes at a time.
void decode(const uint8_t* codes, size_t blocks, const Mxfp6Element& element, int16_t* weights) {
  const Decoder decoded(element);
  const __m256i high_bits = _mm256_set1_epi16(0x30);
  for (size_t half = 0; half < blocks * 2; ++half, codes += 192, weights += 8 * 32) {
    for (size_t i = 0; i < 192; i += 64) fetch(codes + i);
    for (size_t lanes = 0; lanes < 32; lanes += 16) {
      const __m256i w0 = load(codes + lanes * 2), w1 = load(codes + 64 + lanes * 2), w2 = load(codes + 128 + lanes * 2);
      const __m256i high6 = _mm256_and_si256(_mm256_srli_epi16(w2, 8), high_bits);
      const __m256i high7 = _mm256_and_si256(_mm256_srli_epi16(w2, 10), high_bits);
      const __m256i vectors[8] = {w0,
                                  _mm256_srli_epi16(w0, 6),
                                  w1,
                                  _mm256_srli_epi16(w1, 6),
                                  w2,
                                  _mm256_srli_epi16(w2, 6),
                                  _mm256_or_si256(_mm256_srli_epi16(w0, 12), high6),
                                  _mm256_or_si256(_mm256_srli_epi16(w1, 12), high7)};
      MXSPEC_UNROLL for (size_t v = 0; v < 8; ++v) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + v * 32 + lanes), decoded(vectors[v]));
      }
    }
  }
}

// A row tile is two registers of eight outputs.
template <size_t kRows>
void multiply_decoded(const int16_t* weights, const float* weight_scales, size_t blocks, QuantisedGroup group,
                      float* acc) {
  for (size_t block = 0; block < blocks; ++block) {
    __m256i sums[kRows][2];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    const int16_t* q = group.q + block * kRows * kBlock;
    MXSPEC_UNROLL for (size_t v = 0; v < kTileVectors; ++v, weights += 32) {
      const __m256i w0 = load(weights), w1 = load(weights + 16);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        int32_t pair;
        __builtin_memcpy(&pair, q + r * kBlock + v * 2, sizeof pair);
        const __m256i x = _mm256_set1_epi32(pair);
        sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(w0, x));
        sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(w1, x));
        asm("" : "+x"(sums[r][0]), "+x"(sums[r][1]));  // or GCC adds the products up as a tree, storing them first
      }
    }
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) {
      const __m256 scale = _mm256_broadcast_ss(group.scales + block * kRows + i / 2);
      const __m256 weight_scale = _mm256_loadu_ps(weight_scales + block * kTileRows + i % 2 * 8);
      const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[i / 2][i % 2]), scale);
      _mm256_storeu_ps(acc + i * 8, _mm256_fmadd_ps(product, weight_scale, _mm256_loadu_ps(acc + i * 8)));
    }
  }
}

template <size_t kRows>
void multiply_fp16(const uint8_t* weights, size_t, size_t, size_t k_count, const float* values, float* out) {
  __m256 acc[kRows][2];
  MXSPEC_UNROLL for (size_t i = 0; i < kRows * 2; ++i) acc[i / 2][i % 2] = _mm256_loadu_ps(out + i * 8);
  for (size_t first = 0; first < k_count; first += kBlock, values += kRows * kBlock) {
    const size_t count = k_count - first < kBlock ? k_count - first : kBlock;
    for (size_t k = 0; k < count; ++k, weights += kTileRows * 2) {
      const __m256 w0 = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
      if (k % 2 == 0) fetch(weights);  // two of k are a cache line
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

constexpr MatmulKernels kKernels = {
    .most_rows = 4,
    .group_rows = 4,
    .quantise_row = quantise_row_avx2,
    .packed_tiles = {},
    .multiply_packed = {},
    .decode = decode,
    .multiply_decoded = {nullptr, multiply_decoded<1>, multiply_decoded<2>, multiply_decoded<3>, multiply_decoded<4>},
    .fp16_tiles = {0, 1, 1, 1, 1},
    .multiply_fp16 = {nullptr, multiply_fp16<1>, multiply_fp16<2>, multiply_fp16<3>, multiply_fp16<4>},
};

}  // namespace

const MatmulKernels& matmul_kernels_avx2() { return kKernels; }

}  // namespace mxspec
#endif
