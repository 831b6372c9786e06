// lanes_scalar.h in AVX-512: sixteen lanes are one register.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"  // GCC 12, of its own _mm512_undefined_ps()
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstddef>
#include <cstdint>

#include "runtime/ops/kernels/lanes/lanes_scalar.h"

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

// ScalarBytes in AVX-512: with VNNI, a multiplier is four upper and four lower bytes; without, two pairs of int16.
struct Avx512Bytes {
  using Vector = __m512;
  using Ints = __m512i;
  using Pack = __m512i;

#if defined(__AVX512VNNI__)
  static constexpr int32_t kOffset = 128;  // VNNI multiplies unsigned with signed bytes
#else
  static constexpr int32_t kOffset = 0;
#endif

  static Ints zero() { return _mm512_setzero_si512(); }
  static Ints set1(int32_t value) { return _mm512_set1_epi32(value); }
  static Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
  static Vector floats(Ints a) { return _mm512_cvtepi32_ps(a); }
  static int32_t sum(Ints a) {
    const __m256i eight = _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
  }

  static Pack load(const uint8_t* pack) { return _mm512_loadu_si512(pack); }

#if defined(__AVX512VNNI__)
  struct Sums {
    __m512i upper, lower;
  };
  static Sums no_products() { return {zero(), zero()}; }
  static Ints total(Sums sums) { return add(_mm512_slli_epi32(sums.upper, 8), sums.lower); }

  // The upper bytes are rounded, so that the lower ones are signed.
  static Ints key_multipliers(Vector x, uint32_t* to) {
    const __m512i numbers = _mm512_cvtps_epi32(x);
    store_bytes(_mm512_add_epi32(numbers, set1(128)), numbers, to);
    return numbers;
  }
  static Sums add_key_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    return {_mm512_dpbusd_epi32(sums.upper, pack, four(multiplier)),
            _mm512_dpbusd_epi32(sums.lower, pack, four(multiplier + 1))};
  }

  static void value_multipliers(Vector x, uint32_t* to) {
    const __m512i numbers = _mm512_cvtps_epi32(x);
    store_bytes(numbers, numbers, to);
  }
  static Sums add_value_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    return {_mm512_dpbusd_epi32(sums.upper, four(multiplier), pack),
            _mm512_dpbusd_epi32(sums.lower, four(multiplier + 1), pack)};
  }

  static void store_bytes(__m512i upper, __m512i lower, uint32_t* to) {
    const __m128i uppers = _mm512_cvtepi32_epi8(_mm512_srai_epi32(upper, 8)), lowers = _mm512_cvtepi32_epi8(lower);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_unpacklo_epi32(uppers, lowers));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 4), _mm_unpackhi_epi32(uppers, lowers));
  }
#else
  using Sums = Ints;
  static Sums no_products() { return zero(); }
  static Ints total(Sums sums) { return sums; }

  static Ints key_multipliers(Vector x, uint32_t* to) {
    const __m512i numbers = _mm512_cvtps_epi32(x);
    const __m512i even = _mm512_and_si512(numbers, _mm512_set1_epi32(0xffff));
    const __m512i odd = _mm512_shuffle_epi32(_mm512_slli_epi32(numbers, 16), _MM_PERM_AADC);
    const __m512i pairs = _mm512_maskz_compress_epi64(0x55, _mm512_or_si512(even, odd));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(pairs));
    return numbers;
  }
  static Sums add_key_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    const __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(pack, 8), 8), odd = _mm512_srai_epi16(pack, 8);
    return add(add(sums, _mm512_madd_epi16(even, four(multiplier))), _mm512_madd_epi16(odd, four(multiplier + 1)));
  }
  static void value_multipliers(Vector x, uint32_t* to) { key_multipliers(x, to); }
  static Sums add_value_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    return add_key_products(sums, pack, multiplier);
  }
#endif
  static __m512i four(const uint32_t* multiplier) { return set1(static_cast<int32_t>(*multiplier)); }

  static void key_packs(const uint8_t* const* rows, size_t count, uint8_t* to) {
    size_t d = 0;
    for (; d + kPackBytes <= count; d += kPackBytes) {
      __m512 block[16];
      for (size_t j = 0; j < 16; ++j) block[j] = _mm512_castsi512_ps(with_offset(whole(rows[j] + d)));
      Avx512Lanes::transpose_block(block);
      for (size_t i = 0; i < 16; ++i) _mm512_storeu_ps(to + (d / 4 + i) * kPackBytes, block[i]);
    }
    if (d == count) return;
    __m512 block[16];
    for (size_t j = 0; j < 16; ++j) block[j] = _mm512_castsi512_ps(with_offset(half(rows[j] + d)));
    Avx512Lanes::transpose_block(block);
    for (size_t i = 0; i < 8; ++i) _mm512_storeu_ps(to + (d / 4 + i) * kPackBytes, block[i]);
  }
  static void value_packs(const uint8_t* const* rows, size_t count, uint8_t* to, size_t stride) {
    size_t d = 0;
    __m512i packs[4];
    for (; d + kPackBytes <= count; d += kPackBytes) {
      interleave(whole(rows[0] + d), whole(rows[1] + d), whole(rows[2] + d), whole(rows[3] + d), packs);
      for (size_t v = 0; v < 4; ++v) _mm512_storeu_si512(to + (d / 16 + v) * stride, packs[v]);
    }
    if (d == count) return;
    interleave(half(rows[0] + d), half(rows[1] + d), half(rows[2] + d), half(rows[3] + d), packs);
    for (size_t v = 0; v < 2; ++v) _mm512_storeu_si512(to + (d / 16 + v) * stride, packs[v]);
  }
  // 128-bit lane v of quarter q holds elements 16 v + 4 q and three more of all rows; a pack has the quarters of a
  // lane.
  static void interleave(__m512i a, __m512i b, __m512i c, __m512i d, __m512i (&packs)[4]) {
    const __m512i low0 = _mm512_unpacklo_epi8(a, b), low1 = _mm512_unpacklo_epi8(c, d);
    const __m512i high0 = _mm512_unpackhi_epi8(a, b), high1 = _mm512_unpackhi_epi8(c, d);
    const __m512i q0 = _mm512_unpacklo_epi16(low0, low1), q1 = _mm512_unpackhi_epi16(low0, low1),
                  q2 = _mm512_unpacklo_epi16(high0, high1), q3 = _mm512_unpackhi_epi16(high0, high1);
    const __m512i low_lanes0 = _mm512_shuffle_i32x4(q0, q1, 0x44), low_lanes1 = _mm512_shuffle_i32x4(q2, q3, 0x44);
    const __m512i high_lanes0 = _mm512_shuffle_i32x4(q0, q1, 0xee), high_lanes1 = _mm512_shuffle_i32x4(q2, q3, 0xee);
    packs[0] = _mm512_shuffle_i32x4(low_lanes0, low_lanes1, 0x88);
    packs[1] = _mm512_shuffle_i32x4(low_lanes0, low_lanes1, 0xdd);
    packs[2] = _mm512_shuffle_i32x4(high_lanes0, high_lanes1, 0x88);
    packs[3] = _mm512_shuffle_i32x4(high_lanes0, high_lanes1, 0xdd);
  }

  static __m512i whole(const uint8_t* from) { return _mm512_loadu_si512(from); }
  static __m512i half(const uint8_t* from) {
    return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static __m512i with_offset(__m512i bytes) {
    return kOffset == 0 ? bytes : _mm512_xor_si512(bytes, _mm512_set1_epi8(static_cast<char>(kOffset)));
  }
};

}  // namespace
}  // namespace mxspec
