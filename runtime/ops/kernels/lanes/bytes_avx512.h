// bytes_scalar.h in AVX-512: with VNNI, a multiplier is four upper and four lower bytes; without, two pairs of int16.
#pragma once

#include "runtime/ops/kernels/lanes/bytes_scalar.h"
#include "runtime/ops/kernels/lanes/lanes_avx512.h"

namespace mxspec {
namespace {

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
