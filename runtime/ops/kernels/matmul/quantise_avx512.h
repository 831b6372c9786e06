// The block of quantise_impl.h in AVX-512.
#pragma once

#include <immintrin.h>

#include "runtime/ops/kernels/matmul/quantise_impl.h"

namespace mxspec {
namespace {

struct Avx512Block {
  static constexpr bool kPairs = false;
  __m512 low, high;

  static MXSPEC_INLINE Avx512Block load(const float* values) {
    return {_mm512_loadu_ps(values), _mm512_loadu_ps(values + 16)};
  }

  MXSPEC_INLINE uint32_t largest() const {
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(kMagnitudeMask));
    return _mm512_reduce_max_epu32(_mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), mask),
                                                    _mm512_and_si512(_mm512_castps_si512(high), mask)));
  }

  // Rounds to nearest even; the values fit, so the saturation of the narrowing does nothing.
  MXSPEC_INLINE void store(float inverse, int16_t* q) const {
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m256i first = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(low, factor)));
    const __m256i second = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(high, factor)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), first);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + 16), second);
  }

  MXSPEC_INLINE int32_t store(float inverse, int8_t* q) const {
    const __m512 factor = _mm512_set1_ps(inverse);
    const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, factor)),
                  second = _mm512_cvtps_epi32(_mm512_mul_ps(high, factor));
    const __m128i swap_middle = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_shuffle_epi8(_mm512_cvtsepi32_epi8(first), swap_middle));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm_shuffle_epi8(_mm512_cvtsepi32_epi8(second), swap_middle));
    // A NaN became -2^31, of which GCC's addition over lanes, of plain ints, has not the range.
    return _mm512_reduce_add_epi32(_mm512_max_epi32(_mm512_add_epi32(first, second), _mm512_set1_epi32(-256)));
  }
};

}  // namespace
}  // namespace mxspec
