// bytes_scalar.h in NEON: with dot products, a multiplier is four upper and four lower bytes; without, two pairs of
// int16.
#pragma once

#include "runtime/ops/kernels/lanes/bytes_scalar.h"
#include "runtime/ops/kernels/lanes/lanes_neon.h"

namespace mxspec {
namespace {

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
