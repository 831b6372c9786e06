// lanes_scalar.h in AVX2: sixteen lanes are two registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/kernels/lanes/lanes_scalar.h"

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

// ScalarBytes in AVX2: a multiplier is two pairs of int16, for the even and for the odd bytes of a lane.
struct Avx2Bytes {
  using Vector = Avx2Lanes::Vector;
  struct Ints {
    __m256i low, high;
  };
  using Pack = Ints;

  static constexpr int32_t kOffset = 0;

  static Ints zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Ints set1(int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  static Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
  static Vector floats(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
  static int32_t sum(Ints) { return 0; }  // only an offset asks for it

  static Pack load(const uint8_t* pack) {
    const __m256i* const halves = reinterpret_cast<const __m256i*>(pack);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
  }

  static Ints key_multipliers(Vector x, uint32_t* to) {
    const Ints numbers = {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)};
    store_pairs(numbers.low, to);
    store_pairs(numbers.high, to + 4);
    return numbers;
  }
  static void value_multipliers(Vector x, uint32_t* to) { key_multipliers(x, to); }
  // Numbers 0 1 2 3 of a half become the words 0 2 1 3.
  static void store_pairs(__m256i numbers, uint32_t* to) {
    const __m256i even = _mm256_and_si256(numbers, _mm256_set1_epi32(0xffff));
    const __m256i odd = _mm256_shuffle_epi32(_mm256_slli_epi32(numbers, 16), 0x0e);
    const __m256i pairs = _mm256_or_si256(even, odd);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(pairs));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to + 2), _mm256_extracti128_si256(pairs, 1));
  }

  using Sums = Ints;
  static Sums no_products() { return zero(); }
  static Sums add_key_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    const __m256i even = _mm256_set1_epi32(static_cast<int32_t>(multiplier[0])),
                  odd = _mm256_set1_epi32(static_cast<int32_t>(multiplier[1]));
    return {products(sums.low, pack.low, even, odd), products(sums.high, pack.high, even, odd)};
  }
  static __m256i products(__m256i sums, __m256i bytes, __m256i even, __m256i odd) {
    const __m256i of_even = _mm256_madd_epi16(_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8), even);
    return _mm256_add_epi32(_mm256_add_epi32(sums, of_even), _mm256_madd_epi16(_mm256_srai_epi16(bytes, 8), odd));
  }
  static Sums add_value_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    return add_key_products(sums, pack, multiplier);
  }
  static Ints total(Sums sums) { return sums; }

  static void key_packs(const uint8_t* const* rows, size_t count, uint8_t* to) {
    for (size_t d = 0; d < count; d += 16) {
      for (size_t j = 0; j < 16; j += 4) {
        const __m128i a = row(rows[j] + d), b = row(rows[j + 1] + d), c = row(rows[j + 2] + d),
                      e = row(rows[j + 3] + d);
        const __m128i low0 = _mm_unpacklo_epi32(a, b), low1 = _mm_unpacklo_epi32(c, e);
        const __m128i high0 = _mm_unpackhi_epi32(a, b), high1 = _mm_unpackhi_epi32(c, e);
        const __m128i four[] = {_mm_unpacklo_epi64(low0, low1), _mm_unpackhi_epi64(low0, low1),
                                _mm_unpacklo_epi64(high0, high1), _mm_unpackhi_epi64(high0, high1)};
        for (size_t i = 0; i < 4; ++i) store(to + (d / 4 + i) * kPackBytes + j * 4, four[i]);
      }
    }
  }
  static void value_packs(const uint8_t* const* rows, size_t count, uint8_t* to, size_t stride) {
    for (size_t d = 0; d < count; d += 16) {
      const __m128i a = row(rows[0] + d), b = row(rows[1] + d), c = row(rows[2] + d), e = row(rows[3] + d);
      const __m128i low0 = _mm_unpacklo_epi8(a, b), low1 = _mm_unpacklo_epi8(c, e);
      const __m128i high0 = _mm_unpackhi_epi8(a, b), high1 = _mm_unpackhi_epi8(c, e);
      uint8_t* const pack = to + d / 16 * stride;
      store(pack, _mm_unpacklo_epi16(low0, low1));
      store(pack + 16, _mm_unpackhi_epi16(low0, low1));
      store(pack + 32, _mm_unpacklo_epi16(high0, high1));
      store(pack + 48, _mm_unpackhi_epi16(high0, high1));
    }
  }

  static __m128i row(const uint8_t* from) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
  static void store(uint8_t* to, __m128i a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), a); }
};

}  // namespace
}  // namespace mxspec
