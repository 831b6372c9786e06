#if defined(__x86_64__)
#include <immintrin.h>

#include "runtime/ops/kernels/activations.h"

namespace mxspec {
namespace {

uint32_t largest_lane(__m256i lanes) {
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4E));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xB1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}

__m256 as_floats(uint32_t bits) { return _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits))); }

}  // namespace

RowKind quantise_row_avx2(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales) {
  const __m256i magnitude_mask = _mm256_set1_epi32(kMagnitudeMask);
  const __m256i swap_middle = _mm256_broadcastsi128_si256(  // of each four values
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  uint32_t least = 255, most = 0;
  bool finite = true;
  const size_t k_blocks = (k + 31) / 32;
  alignas(32) float last_block[32] = {};
  for (size_t block = 0; block < k_blocks; ++block, row += 32) {
    const float* values = row;
    if (k - block * 32 < 32) {
      __builtin_memcpy(last_block, row, (k - block * 32) * sizeof(float));
      values = last_block;
    }
    __m256 x[4];
    __m256i magnitudes = _mm256_setzero_si256();
    for (size_t i = 0; i < 4; ++i) {
      x[i] = _mm256_loadu_ps(values + i * 8);
      magnitudes = _mm256_max_epu32(magnitudes, _mm256_and_si256(_mm256_castps_si256(x[i]), magnitude_mask));
    }
    const uint32_t magnitude = largest_lane(magnitudes), exponent = rounded_exponent(magnitude);
    finite &= magnitude < kNotFiniteBits;
    if (magnitude != 0) {
      least = exponent < least ? exponent : least;
      most = exponent > most ? exponent : most;
    }
    const bool in_range = exponent >= least_exponent(unit_exponent) && exponent <= most_exponent(unit_exponent);
    const __m256 inverse = as_floats(in_range ? inverse_quantum_bits(exponent) : 0);
    int16_t* out = q + block * rows * 32;
    for (size_t i = 0; i < 2; ++i) {
      // Rounds to nearest even; the values fit int16, so the saturation of the narrowing does nothing.
      const __m256i narrow = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x[2 * i], inverse)),
                                                _mm256_cvtps_epi32(_mm256_mul_ps(x[2 * i + 1], inverse)));
      const __m256i ordered = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(narrow, 0xD8), swap_middle);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i * 16), ordered);
    }
    const uint32_t bits = in_range ? scale_bits(exponent, unit_exponent) : 0;
    __builtin_memcpy(scales + block * rows, &bits, sizeof bits);
  }
  return finish_quantised_row(finite, least, most, unit_exponent, k_blocks, rows, q, scales);
}

}  // namespace mxspec
#endif
