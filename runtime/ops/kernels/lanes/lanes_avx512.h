// lanes_scalar.h in AVX-512: sixteen lanes are one register.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12, of its own _mm512_undefined_ps()
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstddef>
#include <cstdint>

namespace mxspec {
namespace {

struct Avx512Lanes {
  static constexpr size_t kWide = 4;  // 4 rows x 4 vectors of sums, of 32 registers

  using Vector = __m512;
  using Mask = __mmask16;

  static __mmask16 first_lanes(size_t count) { return static_cast<__mmask16>((1u << count) - 1); }

  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector set1(float value) { return _mm512_set1_ps(value); }
  static Vector iota() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static Vector load(const float* from, size_t count) { return _mm512_maskz_loadu_ps(first_lanes(count), from); }
  static Vector load(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Vector load(const uint16_t* from, size_t count) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), from));
  }
  static void store(float* to, Vector a) { _mm512_storeu_ps(to, a); }
  static void store(float* to, Vector a, size_t count) { _mm512_mask_storeu_ps(to, first_lanes(count), a); }
  static void store(uint16_t* to, Vector a, size_t count) {
    _mm256_mask_storeu_epi16(to, first_lanes(count), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
  }

  static Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
  static Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
  static Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector power_of_two(Vector shifted) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(exponent, _mm512_set1_epi32(127 << 23)));
  }

  static Mask less(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask range(size_t first, size_t last) { return static_cast<Mask>(first_lanes(last) & ~first_lanes(first)); }
  static Vector select(Mask mask, Vector a, Vector b) { return _mm512_mask_blend_ps(mask, b, a); }

  template <int kDistance>
  static Vector swap(Vector a) {
    if constexpr (kDistance == 8) return _mm512_shuffle_f32x4(a, a, 0x4e);
    if constexpr (kDistance == 4) return _mm512_shuffle_f32x4(a, a, 0xb1);
    if constexpr (kDistance == 2) return _mm512_permute_ps(a, 0x4e);
    if constexpr (kDistance == 1) return _mm512_permute_ps(a, 0xb1);
  }

  static float sum(Vector a) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float largest(Vector a) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  template <class T>
  static void transpose(const T* const* rows, size_t count, float* to) {
    size_t d = 0;
    for (; d + 16 <= count; d += 16) {
      __m512 block[16];
      for (size_t j = 0; j < 16; ++j) block[j] = load(rows[j] + d);
      transpose_block(block);
      for (size_t i = 0; i < 16; ++i) _mm512_storeu_ps(to + (d + i) * 16, block[i]);
    }
    if (d < count) {
      __m512 block[16];
      for (size_t j = 0; j < 16; ++j) block[j] = load(rows[j] + d, count - d);
      transpose_block(block);
      for (size_t i = 0; d + i < count; ++i) _mm512_storeu_ps(to + (d + i) * 16, block[i]);
    }
  }

  // 16 x 16, in four rounds that exchange neighbours 1, 2, 4 and 8 apart.
  static void transpose_block(__m512* a) {
    __m512 b[16];
    for (size_t i = 0; i < 16; i += 2) {
      b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    for (size_t i = 0; i < 16; i += 4) {
      for (size_t half = 0; half < 2; ++half) {
        const __m512d low = _mm512_castps_pd(b[i + half]), high = _mm512_castps_pd(b[i + half + 2]);
        a[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
        a[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
      }
    }
    // Now 128-bit lane l of a[4 q + i] holds rows 4 q .. 4 q + 3 of column 4 l + i.
    for (size_t i = 0; i < 4; ++i) {
      const __m512 even_low = _mm512_shuffle_f32x4(a[i], a[4 + i], 0x88);
      const __m512 odd_low = _mm512_shuffle_f32x4(a[i], a[4 + i], 0xdd);
      const __m512 even_high = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0x88);
      const __m512 odd_high = _mm512_shuffle_f32x4(a[8 + i], a[12 + i], 0xdd);
      b[i] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
      b[4 + i] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
      b[8 + i] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
      b[12 + i] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
    }
    for (size_t i = 0; i < 16; ++i) a[i] = b[i];
  }
};

}  // namespace
}  // namespace mxspec
