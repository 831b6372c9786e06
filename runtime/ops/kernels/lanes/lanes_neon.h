// lanes_scalar.h in NEON: sixteen lanes are four registers.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/kernels/lanes/lanes_scalar.h"

namespace mxspec {
namespace {

struct NeonLanes {
  static constexpr size_t kWide = 1;  // 4 rows x 4 registers of sums, of 32 registers

  struct Vector {
    float32x4_t four[4];
  };
  struct Mask {
    uint32x4_t four[4];
  };

  template <class Function>
  static Vector each(Function function) {
    return {function(0), function(1), function(2), function(3)};
  }

  static Vector zero() { return set1(0.0f); }
  static Vector set1(float value) {
    return each([&](int) { return vdupq_n_f32(value); });
  }
  static Vector iota() {
    const float32x4_t first = {0, 1, 2, 3};
    return each([&](int i) { return vaddq_f32(first, vdupq_n_f32(4.0f * static_cast<float>(i))); });
  }

  static Vector load(const float* from) {
    return each([&](int i) { return vld1q_f32(from + i * 4); });
  }
  static Vector load(const uint16_t* from) {
    return each([&](int i) { return load_four(from + i * 4); });
  }
  template <class T>
  static Vector load(const T* from, size_t count) {
    T whole[16] = {};
    for (size_t i = 0; i < count; ++i) whole[i] = from[i];
    return load(whole);
  }
  static void store(float* to, Vector a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(to + i * 4, a.four[i]);
  }
  static void store(uint16_t* to, Vector a) {  // rounds to nearest even
    for (int i = 0; i < 4; ++i) vst1_u16(to + i * 4, vreinterpret_u16_f16(vcvt_f16_f32(a.four[i])));
  }
  template <class T>
  static void store(T* to, Vector a, size_t count) {
    if (count == 16) return store(to, a);
    T whole[16];
    store(whole, a);
    for (size_t i = 0; i < count; ++i) to[i] = whole[i];
  }

  static Vector add(Vector a, Vector b) {
    return each([&](int i) { return vaddq_f32(a.four[i], b.four[i]); });
  }
  static Vector sub(Vector a, Vector b) {
    return each([&](int i) { return vsubq_f32(a.four[i], b.four[i]); });
  }
  static Vector mul(Vector a, Vector b) {
    return each([&](int i) { return vmulq_f32(a.four[i], b.four[i]); });
  }
  static Vector div(Vector a, Vector b) {
    return each([&](int i) { return vdivq_f32(a.four[i], b.four[i]); });
  }
  static Vector fma(Vector a, Vector b, Vector c) {
    return each([&](int i) { return vfmaq_f32(c.four[i], a.four[i], b.four[i]); });
  }
  static Vector max(Vector a, Vector b) {
    return each([&](int i) { return max(a.four[i], b.four[i]); });
  }
  static float32x4_t max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // fmax keeps NaN
  static Vector power_of_two(Vector shifted) {
    return each([&](int i) {
      const uint32x4_t exponent = vshlq_n_u32(vreinterpretq_u32_f32(shifted.four[i]), 23);
      return vreinterpretq_f32_u32(vaddq_u32(exponent, vdupq_n_u32(127u << 23)));
    });
  }

  static Mask less(Vector a, Vector b) {
    Mask out;
    for (int i = 0; i < 4; ++i) out.four[i] = vcltq_f32(a.four[i], b.four[i]);
    return out;
  }
  static Mask range(size_t first, size_t last) {
    const Mask from = less(set1(static_cast<float>(first) - 0.5f), iota());
    const Mask to = less(iota(), set1(static_cast<float>(last)));
    Mask out;
    for (int i = 0; i < 4; ++i) out.four[i] = vandq_u32(from.four[i], to.four[i]);
    return out;
  }
  static Vector select(Mask mask, Vector a, Vector b) {
    return each([&](int i) { return vbslq_f32(mask.four[i], a.four[i], b.four[i]); });
  }

  template <int kDistance>
  static Vector swap(Vector a) {
    return each([&](int i) {
      if constexpr (kDistance >= 4) return a.four[i ^ (kDistance / 4)];
      if constexpr (kDistance == 2) return vextq_f32(a.four[i], a.four[i], 2);
      if constexpr (kDistance == 1) return vrev64q_f32(a.four[i]);
    });
  }

  static float sum(Vector a) {
    const float32x4_t four = vaddq_f32(vaddq_f32(a.four[0], a.four[2]), vaddq_f32(a.four[1], a.four[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
  }
  static float largest(Vector a) {
    const float32x4_t four = max(max(a.four[0], a.four[2]), max(a.four[1], a.four[3]));
    const float32x4_t two = max(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(max(two, vextq_f32(two, two, 1)), 0);
  }

  template <class T>
  static void transpose(const T* const* rows, size_t count, float* to) {
    size_t d = 0;
    for (; d + 4 <= count; d += 4) {  // 16 rows x 4 columns
      for (size_t j = 0; j < 16; j += 4) {
        const float32x4_t a0 = load_four(rows[j] + d), a1 = load_four(rows[j + 1] + d);
        const float32x4_t a2 = load_four(rows[j + 2] + d), a3 = load_four(rows[j + 3] + d);
        const float32x4_t b0 = vzip1q_f32(a0, a2), b1 = vzip2q_f32(a0, a2);
        const float32x4_t b2 = vzip1q_f32(a1, a3), b3 = vzip2q_f32(a1, a3);
        vst1q_f32(to + d * 16 + j, vzip1q_f32(b0, b2));
        vst1q_f32(to + (d + 1) * 16 + j, vzip2q_f32(b0, b2));
        vst1q_f32(to + (d + 2) * 16 + j, vzip1q_f32(b1, b3));
        vst1q_f32(to + (d + 3) * 16 + j, vzip2q_f32(b1, b3));
      }
    }
    for (; d < count; ++d) {
      for (size_t j = 0; j < 16; ++j) to[d * 16 + j] = as_float(rows[j][d]);
    }
  }

  static float as_float(float value) { return value; }
  static float as_float(uint16_t value) {
    return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(value))), 0);
  }

  static float32x4_t load_four(const float* from) { return vld1q_f32(from); }
  static float32x4_t load_four(const uint16_t* from) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from))); }
};

// ScalarBytes in NEON: with dot products, a multiplier is four upper and four lower bytes; without, two pairs of
// int16.
struct NeonBytes {
  using Vector = NeonLanes::Vector;
  struct Ints {
    int32x4_t four[4];
  };
  struct Pack {
    int8x16_t four[4];
  };

  static constexpr int32_t kOffset = 0;

  static Ints zero() { return set1(0); }
  static Ints set1(int32_t value) {
    return {vdupq_n_s32(value), vdupq_n_s32(value), vdupq_n_s32(value), vdupq_n_s32(value)};
  }
  static Ints add(Ints a, Ints b) {
    for (int i = 0; i < 4; ++i) a.four[i] = vaddq_s32(a.four[i], b.four[i]);
    return a;
  }
  static Vector floats(Ints a) {
    return NeonLanes::each([&](int i) { return vcvtq_f32_s32(a.four[i]); });
  }
  static int32_t sum(Ints) { return 0; }  // only an offset asks for it

  static Pack load(const uint8_t* pack) {
    const int8_t* const from = reinterpret_cast<const int8_t*>(pack);
    return {vld1q_s8(from), vld1q_s8(from + 16), vld1q_s8(from + 32), vld1q_s8(from + 48)};
  }

#if defined(__ARM_FEATURE_DOTPROD)
  struct Sums {
    Ints upper, lower;
  };
  static Sums no_products() { return {zero(), zero()}; }
  static Ints total(Sums sums) {
    for (int i = 0; i < 4; ++i) sums.upper.four[i] = vshlq_n_s32(sums.upper.four[i], 8);
    return add(sums.upper, sums.lower);
  }
  static Ints key_multipliers(Vector x, uint32_t* to) {
    Ints numbers;
    int16x4_t upper[4], lower[4];
    for (int i = 0; i < 4; ++i) {
      numbers.four[i] = vcvtnq_s32_f32(x.four[i]);
      upper[i] = vmovn_s32(vshrq_n_s32(vaddq_s32(numbers.four[i], vdupq_n_s32(128)), 8));
      lower[i] = vmovn_s32(numbers.four[i]);
    }
    const uint32x4_t uppers = bytes_of(upper), lowers = bytes_of(lower);
    vst1q_u32(to, vzip1q_u32(uppers, lowers));
    vst1q_u32(to + 4, vzip2q_u32(uppers, lowers));
    return numbers;
  }
  static uint32x4_t bytes_of(const int16x4_t* words) {
    const int8x8_t low = vmovn_s16(vcombine_s16(words[0], words[1])),
                   high = vmovn_s16(vcombine_s16(words[2], words[3]));
    return vreinterpretq_u32_s8(vcombine_s8(low, high));
  }
  static Sums add_key_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    const int8x16_t upper = vreinterpretq_s8_u32(vdupq_n_u32(multiplier[0])),
                    lower = vreinterpretq_s8_u32(vdupq_n_u32(multiplier[1]));
    for (int i = 0; i < 4; ++i) {
      sums.upper.four[i] = vdotq_s32(sums.upper.four[i], pack.four[i], upper);
      sums.lower.four[i] = vdotq_s32(sums.lower.four[i], pack.four[i], lower);
    }
    return sums;
  }
#else
  using Sums = Ints;
  static Sums no_products() { return zero(); }
  static Ints total(Sums sums) { return sums; }
  static Ints key_multipliers(Vector x, uint32_t* to) {
    Ints numbers;
    for (int i = 0; i < 4; ++i) {
      numbers.four[i] = vcvtnq_s32_f32(x.four[i]);
      const int16x4_t words = vmovn_s32(numbers.four[i]);
      constexpr uint8_t kEvenFirst[] = {0, 1, 4, 5, 2, 3, 6, 7};
      vst1_u8(reinterpret_cast<uint8_t*>(to + i * 2), vtbl1_u8(vreinterpret_u8_s16(words), vld1_u8(kEvenFirst)));
    }
    return numbers;
  }
  static Sums add_key_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    const int16x8_t even = vreinterpretq_s16_u32(vdupq_n_u32(multiplier[0])),
                    odd = vreinterpretq_s16_u32(vdupq_n_u32(multiplier[1]));
    for (int i = 0; i < 4; ++i) {
      const int16x8_t bytes = vreinterpretq_s16_s8(pack.four[i]);
      const int32x4_t of_even = products(vshrq_n_s16(vshlq_n_s16(bytes, 8), 8), even),
                      of_odd = products(vshrq_n_s16(bytes, 8), odd);
      sums.four[i] = vaddq_s32(sums.four[i], vaddq_s32(of_even, of_odd));
    }
    return sums;
  }
  static int32x4_t products(int16x8_t words, int16x8_t numbers) {
    return vpaddq_s32(vmull_s16(vget_low_s16(words), vget_low_s16(numbers)), vmull_high_s16(words, numbers));
  }
#endif
  static void value_multipliers(Vector x, uint32_t* to) { key_multipliers(x, to); }
  static Sums add_value_products(Sums sums, Pack pack, const uint32_t* multiplier) {
    return add_key_products(sums, pack, multiplier);
  }

  static void key_packs(const uint8_t* const* rows, size_t count, uint8_t* to) {
    for (size_t d = 0; d < count; d += 16) {
      for (size_t j = 0; j < 16; j += 4) {
        const uint32x4_t a = row(rows[j] + d), b = row(rows[j + 1] + d), c = row(rows[j + 2] + d),
                         e = row(rows[j + 3] + d);
        const uint64x2_t even0 = vreinterpretq_u64_u32(vtrn1q_u32(a, b)),
                         odd0 = vreinterpretq_u64_u32(vtrn2q_u32(a, b));
        const uint64x2_t even1 = vreinterpretq_u64_u32(vtrn1q_u32(c, e)),
                         odd1 = vreinterpretq_u64_u32(vtrn2q_u32(c, e));
        const uint64x2_t four[] = {vtrn1q_u64(even0, even1), vtrn1q_u64(odd0, odd1), vtrn2q_u64(even0, even1),
                                   vtrn2q_u64(odd0, odd1)};
        for (size_t i = 0; i < 4; ++i) vst1q_u8(to + (d / 4 + i) * kPackBytes + j * 4, vreinterpretq_u8_u64(four[i]));
      }
    }
  }
  static void value_packs(const uint8_t* const* rows, size_t count, uint8_t* to, size_t stride) {
    for (size_t d = 0; d < count; d += 16) {
      const uint8x16x4_t four = {vld1q_u8(rows[0] + d), vld1q_u8(rows[1] + d), vld1q_u8(rows[2] + d),
                                 vld1q_u8(rows[3] + d)};
      vst4q_u8(to + d / 16 * stride, four);
    }
  }

  static uint32x4_t row(const uint8_t* from) { return vreinterpretq_u32_u8(vld1q_u8(from)); }
};

}  // namespace
}  // namespace mxspec
