// Sixteen float lanes in portable code: the reference for the other lanes_*.h, which have the same names.
//
// Kernels written against these names give the same bits on every instruction set: each operation is one IEEE operation
// a lane, a multiply and an add are fused where `fma` says so, and sums over lanes follow one tree. Everything is local
// to its file, so that code compiled for one instruction set is never linked into another's.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "formats/native/half.h"

namespace mxspec {
namespace {

struct ScalarLanes {
  static constexpr size_t kWide = 1;  // vectors of a register tile; with 4 rows they must fit the register file

  struct Vector {
    float lane[16];
  };
  struct Mask {
    bool lane[16];
  };

  template <class Function>
  static Vector each(Function function) {
    Vector out;
    for (int i = 0; i < 16; ++i) out.lane[i] = function(i);
    return out;
  }

  static Vector zero() { return set1(0.0f); }
  static Vector set1(float value) {
    return each([&](int) { return value; });
  }
  // 0, 1, ... 15
  static Vector iota() {
    return each([](int i) { return static_cast<float>(i); });
  }

  // Memory. The forms with a count touch only that many values and give zeros after them.
  static Vector load(const float* from) {
    return each([&](int i) { return from[i]; });
  }
  static Vector load(const float* from, size_t count) {
    return each([&](int i) { return static_cast<size_t>(i) < count ? from[i] : 0.0f; });
  }
  static Vector load(const uint16_t* from) {
    return each([&](int i) { return formats::half_to_float(from[i]); });
  }
  static Vector load(const uint16_t* from, size_t count) {
    return each([&](int i) { return static_cast<size_t>(i) < count ? formats::half_to_float(from[i]) : 0.0f; });
  }
  static void store(float* to, Vector a, size_t count = 16) {
    for (size_t i = 0; i < count; ++i) to[i] = a.lane[i];
  }
  static void store(uint16_t* to, Vector a, size_t count = 16) {  // rounds to nearest even
    for (size_t i = 0; i < count; ++i) to[i] = formats::float_to_half(a.lane[i]);
  }

  static Vector add(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Vector sub(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Vector mul(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Vector div(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  // a * b + c, rounded once
  static Vector fma(Vector a, Vector b, Vector c) {
    return each([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  // b where either is NaN, as vmaxps has it
  static Vector max(Vector a, Vector b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  // 2^n of the integer n that the low bits of (x + 1.5 * 2^23) hold
  static Vector power_of_two(Vector shifted) {
    return each([&](int i) {
      return __builtin_bit_cast(float, (__builtin_bit_cast(uint32_t, shifted.lane[i]) << 23) + (127u << 23));
    });
  }

  static Mask less(Vector a, Vector b) {
    Mask out;
    for (int i = 0; i < 16; ++i) out.lane[i] = a.lane[i] < b.lane[i];
    return out;
  }
  // Lanes first to last - 1; both within 0 and 16
  static Mask range(size_t first, size_t last) {
    Mask out;
    for (size_t i = 0; i < 16; ++i) out.lane[i] = first <= i && i < last;
    return out;
  }
  // a where the mask is set, else b
  static Vector select(Mask mask, Vector a, Vector b) {
    return each([&](int i) { return mask.lane[i] ? a.lane[i] : b.lane[i]; });
  }

  // Each lane has that of the lane kDistance (1, 2, 4 or 8) away, in pairs.
  template <int kDistance>
  static Vector swap(Vector a) {
    return each([&](int i) { return a.lane[i ^ kDistance]; });
  }

  // ((((l0+l8)+(l4+l12)) + ((l2+l10)+(l6+l14))) + the same sum over the odd lanes
  static float sum(Vector a) {
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) a.lane[i] = a.lane[i] + a.lane[i + width];
    }
    return a.lane[0];
  }
  // The same tree, of max
  static float largest(Vector a) {
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) a.lane[i] = a.lane[i] > a.lane[i + width] ? a.lane[i] : a.lane[i + width];
    }
    return a.lane[0];
  }

  // to[d * 16 + j] = rows[j][d] for d < count, a multiple of 2
  template <class T>
  static void transpose(const T* const* rows, size_t count, float* to) {
    for (size_t j = 0; j < 16; ++j) {
      for (size_t d = 0; d < count; ++d) to[d * 16 + j] = as_float(rows[j][d]);
    }
  }

  static float as_float(float value) { return value; }
  static float as_float(uint16_t value) { return formats::half_to_float(value); }
};

inline constexpr float kLargestMultiplier = 127 * 256;  // its upper byte, rounded, is a signed one
inline constexpr size_t kPackBytes = 64;
inline constexpr size_t kMultiplierWords = 2;

// Exact products of bytes with int16 numbers in portable code: the reference for the other files, which have the same
// names.
//
// A pack is sixteen lanes of four bytes; a multiplier is four numbers, of at most kLargestMultiplier, in whatever form
// the instruction set likes. Each lane of the sums takes the products of its four bytes with the four numbers. All of
// it is integers, so that every instruction set gives the same. Keys and values have operations of their own, because
// the numbers that values are multiplied with are never negative.
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
