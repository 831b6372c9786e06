// The block of quantise_impl.h in NEON.
#pragma once

#include <arm_neon.h>

#include "runtime/ops/kernels/matmul/quantise_impl.h"

namespace mxspec {
namespace {

struct NeonBlock {
  static constexpr bool kPairs = false;
  float32x4_t x[8];

  static MXSPEC_INLINE NeonBlock load(const float* values) {
    NeonBlock block;
    MXSPEC_UNROLL for (size_t i = 0; i < 8; ++i) block.x[i] = vld1q_f32(values + i * 4);
    return block;
  }

  MXSPEC_INLINE uint32_t largest() const {
    uint32x4_t most = vdupq_n_u32(0);
    MXSPEC_UNROLL for (size_t i = 0; i < 8; ++i) {
      most = vmaxq_u32(most, vandq_u32(vreinterpretq_u32_f32(x[i]), vdupq_n_u32(kMagnitudeMask)));
    }
    return vmaxvq_u32(most);
  }

  // Eight values. Rounds to nearest even; they fit int16.
  MXSPEC_INLINE int16x8_t words(float inverse, size_t i) const {
    const int32x4_t low = vcvtnq_s32_f32(vmulq_n_f32(x[i * 2], inverse)),
                    high = vcvtnq_s32_f32(vmulq_n_f32(x[i * 2 + 1], inverse));
    return vmovn_high_s32(vmovn_s32(low), high);
  }

  MXSPEC_INLINE void store(float inverse, int16_t* q) const {
    MXSPEC_UNROLL for (size_t i = 0; i < 4; ++i) vst1q_s16(q + i * 8, words(inverse, i));
  }

  MXSPEC_INLINE int32_t store(float inverse, int8_t* q) const {
    constexpr uint8_t kSwapMiddle[] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
    int32_t sum = 0;
    MXSPEC_UNROLL for (size_t i = 0; i < 2; ++i) {
      const int16x8_t low = words(inverse, i * 2), high = words(inverse, i * 2 + 1);
      vst1q_s8(q + i * 16, vqtbl1q_s8(vmovn_high_s16(vmovn_s16(low), high), vld1q_u8(kSwapMiddle)));
      sum += vaddlvq_s16(vaddq_s16(low, high));
    }
    return sum;
  }
};

}  // namespace
}  // namespace mxspec
