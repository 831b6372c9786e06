// The block of quantise_impl.h in AVX2. Its int16, too, have the middle of each four swapped.
#pragma once

#include <immintrin.h>

#include "runtime/ops/kernels/matmul/quantise_impl.h"

namespace mxspec {
namespace {

struct Avx2Block {
  static constexpr bool kPairs = true;
  __m256 x[4];

  static MXSPEC_INLINE Avx2Block load(const float* values) {
    Avx2Block block;
    MXSPEC_UNROLL for (size_t i = 0; i < 4; ++i) block.x[i] = _mm256_loadu_ps(values + i * 8);
    return block;
  }

  MXSPEC_INLINE uint32_t largest() const {
    const __m256i mask = _mm256_set1_epi32(static_cast<int>(kMagnitudeMask));
    __m256i most = _mm256_setzero_si256();
    MXSPEC_UNROLL for (size_t i = 0; i < 4; ++i) {
      most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(x[i]), mask));
    }
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
  }

  // Rounds to nearest even; the values fit int16, so the saturation of the narrowing does nothing.
  MXSPEC_INLINE __m256i words(float inverse, size_t i) const {
    const __m256 factor = _mm256_set1_ps(inverse);
    const __m256i narrow = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x[2 * i], factor)),
                                              _mm256_cvtps_epi32(_mm256_mul_ps(x[2 * i + 1], factor)));
    return _mm256_permute4x64_epi64(narrow, 0xD8);
  }

  MXSPEC_INLINE void store(float inverse, int16_t* q) const {
    const __m256i swap_middle =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    MXSPEC_UNROLL for (size_t i = 0; i < 2; ++i) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(q + i * 16), _mm256_shuffle_epi8(words(inverse, i), swap_middle));
    }
  }

  MXSPEC_INLINE int32_t store(float inverse, int8_t* q) const {
    const __m256i swap_middle =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    const __m256i low = words(inverse, 0), high = words(inverse, 1);
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xD8);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_shuffle_epi8(bytes, swap_middle));
    const __m256i pairs = _mm256_madd_epi16(_mm256_add_epi16(low, high), _mm256_set1_epi16(1));
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
  }

  static MXSPEC_INLINE void store_pairs(const int8_t* q, const QuantisationRule& rule, int32_t* starts) {
    const __m256i values = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q));
    const __m256i eight = _mm256_maddubs_epi16(_mm256_set1_epi8(static_cast<int8_t>(rule.offset)), values);
    const __m256i two_each = _mm256_add_epi16(eight, _mm256_srli_epi64(eight, 32));  // in the even int32
    const __m128i low = _mm256_castsi256_si128(two_each), high = _mm256_extracti128_si256(two_each, 1);
    __m128i four = _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(low), _mm_castsi128_ps(high), 0x88));
    four = _mm_sub_epi16(_mm_setzero_si128(), four);
    if (rule.starts == Starts::kFourPairs) return _mm_storeu_si128(reinterpret_cast<__m128i*>(starts), four);
    four = _mm_add_epi16(four, _mm_shuffle_epi32(four, 0x4E));
    starts[0] = _mm_cvtsi128_si32(_mm_add_epi16(four, _mm_shuffle_epi32(four, 0xB1)));
  }
};

}  // namespace
}  // namespace mxspec
