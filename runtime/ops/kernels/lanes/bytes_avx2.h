// bytes_scalar.h in AVX2: a multiplier is two pairs of int16, for the even and for the odd bytes of a lane.
#pragma once

#include <immintrin.h>

#include "runtime/ops/kernels/lanes/bytes_scalar.h"
#include "runtime/ops/kernels/lanes/lanes_avx2.h"

namespace mxspec {
namespace {

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
