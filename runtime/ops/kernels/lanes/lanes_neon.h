// lanes_scalar.h in NEON: sixteen lanes are four registers.
#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

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

}  // namespace
}  // namespace mxspec
