#if defined(__x86_64__)
#include <immintrin.h>

// GCC 12 takes the deliberately undefined registers of its own intrinsics for a mistake (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include "runtime/ops/kernels/activations.h"

namespace mxspec {

constexpr size_t kBlocksAhead = 8;  // fetched ahead: the values of a row lie far apart in its group

RowKind quantise_row_avx512(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales) {
  const __m512i magnitude_mask = _mm512_set1_epi32(kMagnitudeMask);
  const uint32_t least_allowed = least_exponent(unit_exponent), most_allowed = most_exponent(unit_exponent);
  uint32_t least = 255, most = 0;
  bool finite = true;
  const size_t k_blocks = (k + 31) / 32;
  for (size_t block = 0; block < k_blocks; ++block, row += 32) {
    _mm_prefetch(reinterpret_cast<const char*>(row + kBlocksAhead * 32), _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(row + kBlocksAhead * 32 + 16), _MM_HINT_T0);
    __builtin_prefetch(q + (block + kBlocksAhead) * rows * 32, 1);
    const size_t left = k - block * 32;
    const uint32_t lanes = left >= 32 ? 0xFFFFFFFFu : (1u << left) - 1;
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes), row);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(lanes >> 16), row + 16);
    const __m512i magnitudes = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude_mask),
                                                _mm512_and_si512(_mm512_castps_si512(high), magnitude_mask));
    const uint32_t magnitude = _mm512_reduce_max_epu32(magnitudes);
    const uint32_t exponent = rounded_exponent(magnitude);
    finite &= magnitude < kNotFiniteBits;
    if (magnitude != 0) {
      least = exponent < least ? exponent : least;
      most = exponent > most ? exponent : most;
    }
    const bool in_range = exponent >= least_allowed && exponent <= most_allowed;
    const uint32_t inverse_bits = in_range ? inverse_quantum_bits(exponent) : 0;
    const __m512 inverse = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(inverse_bits)));
    // Rounds to nearest even; the values fit int16, so the saturation of the narrowing does nothing.
    const __m256i q_low = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(low, inverse)));
    const __m256i q_high = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(high, inverse)));
    int16_t* out = q + block * rows * 32;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), q_low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 16), q_high);
    const uint32_t bits = in_range ? scale_bits(exponent, unit_exponent) : 0;
    __builtin_memcpy(scales + block * rows, &bits, sizeof bits);
  }
  return finish_quantised_row(finite, least, most, unit_exponent, k_blocks, rows, q, scales);
}

}  // namespace mxspec
#endif
