// lanes_scalar.h in AVX2: sixteen lanes are two registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace mxspec {
namespace {

struct Avx2Lanes {
  static constexpr size_t kWide = 1;  // 4 rows x 2 registers of sums, of 16 registers

  struct Vector {
    __m256 low, high;
  };
  using Mask = Vector;

  static Vector zero() { return set1(0.0f); }
  static Vector set1(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static Vector iota() {
    return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_ps(8, 9, 10, 11, 12, 13, 14, 15)};
  }

  static Vector load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
  static Vector load(const uint16_t* from) {
    const __m128i* const eights = reinterpret_cast<const __m128i*>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(eights)), _mm256_cvtph_ps(_mm_loadu_si128(eights + 1))};
  }
  template <class T>
  static Vector load(const T* from, size_t count) {
    T whole[16] = {};
    for (size_t i = 0; i < count; ++i) whole[i] = from[i];
    return load(whole);
  }
  static void store(float* to, Vector a) {
    _mm256_storeu_ps(to, a.low);
    _mm256_storeu_ps(to + 8, a.high);
  }
  static void store(uint16_t* to, Vector a) {
    __m128i* const eights = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(eights, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(eights + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
  }
  template <class T>
  static void store(T* to, Vector a, size_t count) {
    if (count == 16) return store(to, a);
    T whole[16];
    store(whole, a);
    for (size_t i = 0; i < count; ++i) to[i] = whole[i];
  }

  static Vector add(Vector a, Vector b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static Vector sub(Vector a, Vector b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static Vector mul(Vector a, Vector b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static Vector div(Vector a, Vector b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static Vector fma(Vector a, Vector b, Vector c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static Vector max(Vector a, Vector b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static Vector power_of_two(Vector shifted) { return {power_of_two(shifted.low), power_of_two(shifted.high)}; }
  static __m256 power_of_two(__m256 shifted) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(127 << 23)));
  }

  static Mask less(Vector a, Vector b) {
    return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
  }
  static Mask range(size_t first, size_t last) {
    const Mask from = less(set1(static_cast<float>(first) - 0.5f), iota());
    const Mask to = less(iota(), set1(static_cast<float>(last)));
    return {_mm256_and_ps(from.low, to.low), _mm256_and_ps(from.high, to.high)};
  }
  static Vector select(Mask mask, Vector a, Vector b) {
    return {_mm256_blendv_ps(b.low, a.low, mask.low), _mm256_blendv_ps(b.high, a.high, mask.high)};
  }

  template <int kDistance>
  static Vector swap(Vector a) {
    if constexpr (kDistance == 8) return {a.high, a.low};
    if constexpr (kDistance == 4)
      return {_mm256_permute2f128_ps(a.low, a.low, 1), _mm256_permute2f128_ps(a.high, a.high, 1)};
    if constexpr (kDistance == 2) return {_mm256_permute_ps(a.low, 0x4e), _mm256_permute_ps(a.high, 0x4e)};
    if constexpr (kDistance == 1) return {_mm256_permute_ps(a.low, 0xb1), _mm256_permute_ps(a.high, 0xb1)};
  }

  static float sum(Vector a) {
    const __m256 eight = _mm256_add_ps(a.low, a.high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static float largest(Vector a) {
    const __m256 eight = _mm256_max_ps(a.low, a.high);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  template <class T>
  static void transpose(const T* const* rows, size_t count, float* to) {
    size_t d = 0;
    for (; d + 4 <= count; d += 4) {  // 16 rows x 4 columns
      for (size_t j = 0; j < 16; j += 8) {
        // Lane 0 of register i holds row j + i, lane 1 row j + i + 4.
        const __m256 a0 = pair(rows[j] + d, rows[j + 4] + d), a1 = pair(rows[j + 1] + d, rows[j + 5] + d);
        const __m256 a2 = pair(rows[j + 2] + d, rows[j + 6] + d), a3 = pair(rows[j + 3] + d, rows[j + 7] + d);
        const __m256d b0 = _mm256_castps_pd(_mm256_unpacklo_ps(a0, a1)),
                      b1 = _mm256_castps_pd(_mm256_unpackhi_ps(a0, a1));
        const __m256d b2 = _mm256_castps_pd(_mm256_unpacklo_ps(a2, a3)),
                      b3 = _mm256_castps_pd(_mm256_unpackhi_ps(a2, a3));
        _mm256_storeu_ps(to + d * 16 + j, _mm256_castpd_ps(_mm256_unpacklo_pd(b0, b2)));
        _mm256_storeu_ps(to + (d + 1) * 16 + j, _mm256_castpd_ps(_mm256_unpackhi_pd(b0, b2)));
        _mm256_storeu_ps(to + (d + 2) * 16 + j, _mm256_castpd_ps(_mm256_unpacklo_pd(b1, b3)));
        _mm256_storeu_ps(to + (d + 3) * 16 + j, _mm256_castpd_ps(_mm256_unpackhi_pd(b1, b3)));
      }
    }
    for (; d < count; ++d) {
      for (size_t j = 0; j < 16; ++j) to[d * 16 + j] = as_float(rows[j][d]);
    }
  }

  static float as_float(float value) { return value; }
  static float as_float(uint16_t value) { return _cvtsh_ss(value); }

  static __m256 pair(const float* low, const float* high) { return _mm256_loadu2_m128(high, low); }
  static __m256 pair(const uint16_t* low, const uint16_t* high) {
    return _mm256_cvtph_ps(_mm_unpacklo_epi64(_mm_loadu_si64(low), _mm_loadu_si64(high)));
  }
};

}  // namespace
}  // namespace mxspec
