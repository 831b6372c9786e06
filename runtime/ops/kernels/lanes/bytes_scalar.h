// Exact products of bytes with int16 numbers in portable code: the reference for the other bytes_*.h, which have the
// same names.
//
// A pack is sixteen lanes of four bytes; a multiplier is four numbers, of at most kLargestMultiplier, in whatever form
// the instruction set likes. Each lane of the sums takes the products of its four bytes with the four numbers. All of
// it is integers, so that every instruction set gives the same. Keys and values have operations of their own, because
// the numbers that values are multiplied with are never negative.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "runtime/ops/kernels/lanes/lanes_scalar.h"

namespace mxspec {
namespace {

inline constexpr float kLargestMultiplier = 127 * 256;  // its upper byte, rounded, is a signed one
inline constexpr size_t kPackBytes = 64;
inline constexpr size_t kMultiplierWords = 2;

struct ScalarBytes {
  using Vector = ScalarLanes::Vector;
  struct Ints {
    int32_t lane[16];
  };

  // Added to the bytes of packs by key_packs: sums then contain it times the sum of the multipliers.
  static constexpr int32_t kOffset = 0;

  static Ints zero() { return {}; }
  static Ints set1(int32_t value) {
    Ints out;
    for (int32_t& lane : out.lane) lane = value;
    return out;
  }
  static Ints add(Ints a, Ints b) {
    for (int i = 0; i < 16; ++i) a.lane[i] += b.lane[i];
    return a;
  }
  static int32_t sum(Ints a) {
    int32_t sum = 0;
    for (const int32_t lane : a.lane) sum += lane;
    return sum;
  }
  static Vector floats(Ints a) {
    return ScalarLanes::each([&](int i) { return static_cast<float>(a.lane[i]); });
  }

  struct Pack {
    int8_t byte[kPackBytes];
  };
  static Pack load(const uint8_t* pack) {
    Pack out;
    std::memcpy(out.byte, pack, kPackBytes);
    return out;
  }

  // Sixteen numbers, rounded to nearest even, to four multipliers; the numbers.
  static Ints key_multipliers(Vector x, uint32_t* to) {
    Ints numbers;
    for (int i = 0; i < 16; ++i) numbers.lane[i] = static_cast<int32_t>(std::nearbyint(x.lane[i]));
    int16_t words[16];
    for (int i = 0; i < 16; ++i) words[i] = static_cast<int16_t>(numbers.lane[i]);
    std::memcpy(to, words, sizeof words);
    return numbers;
  }
  static void value_multipliers(Vector x, uint32_t* to) { key_multipliers(x, to); }

  using Sums = Ints;
  static Sums no_products() { return {}; }
  static Sums add_key_products(Sums sums, const Pack& pack, const uint32_t* multiplier) {
    int16_t numbers[4];
    std::memcpy(numbers, multiplier, sizeof numbers);
    for (size_t byte = 0; byte < kPackBytes; ++byte) sums.lane[byte / 4] += pack.byte[byte] * numbers[byte % 4];
    return sums;
  }
  static Sums add_value_products(Sums sums, const Pack& pack, const uint32_t* multiplier) {
    return add_key_products(sums, pack, multiplier);
  }
  static Ints total(Sums sums) { return sums; }

  // Sixteen keys of `count` elements, a multiple of 32, to count / 4 packs: lane j has four elements of row j.
  static void key_packs(const uint8_t* const* rows, size_t count, uint8_t* to) {
    for (size_t d = 0; d < count; ++d) {
      for (size_t j = 0; j < 16; ++j) to[d / 4 * kPackBytes + j * 4 + d % 4] = rows[j][d];
    }
  }
  // Four values of `count` elements, a multiple of 32, to a pack for each sixteen of them, `stride` bytes apart: lane d
  // has element d of the four rows.
  static void value_packs(const uint8_t* const* rows, size_t count, uint8_t* to, size_t stride) {
    for (size_t d = 0; d < count; ++d) {
      for (size_t j = 0; j < 4; ++j) to[d / 16 * stride + d % 16 * 4 + j] = rows[j][d];
    }
  }
};

}  // namespace
}  // namespace mxspec
