// What the NEON kernels of int16 and of int8 rows share. Everything here has internal linkage, as in
// matmul_avx512_tiles.h.
#pragma once

#include <arm_neon.h>

#include <utility>

#include "runtime/ops/kernels/compiler.h"
#include "runtime/ops/kernels/matmul/matmul_kernels.h"

namespace mxspec {
namespace {

// Nothing is loaded earlier, or kept in registers for later, across this: GCC 12 would do both until the sums no longer
// fit. The product of six rows takes a quarter fewer instructions with it.
MXSPEC_INLINE void keep_in_order() { asm volatile("" ::: "memory"); }

// One byte of each of 64 values: a look-up finds 16 of them.
using Table = uint8x16x4_t;

// Four rows (those from byte 4 * row on) of vector kQuad (0 to 3) of half a tile: their codes, nothing above these
// (formats/native/layout.h has the picture).
template <int kBits, size_t kQuad>
MXSPEC_INLINE uint8x16_t codes_of(const uint8_t* half) {
  if constexpr (kBits == 8) {
    return vld1q_u8(half + kQuad * 64);
  } else if constexpr (kBits == 4) {
    const uint8x16_t run = vld1q_u8(half + kQuad / 2 * 64);
    return kQuad % 2 == 0 ? vandq_u8(run, vdupq_n_u8(15)) : vshrq_n_u8(run, 4);
  } else if constexpr (kQuad < 3) {
    return vandq_u8(vld1q_u8(half + kQuad * 64), vdupq_n_u8(63));
  } else {
    const uint8x16_t low = vld1q_u8(half), middle = vld1q_u8(half + 64), high = vld1q_u8(half + 128);
    // From the top: the two bits of the last, of the middle, of the first; then two places down.
    return vshrq_n_u8(vsriq_n_u8(high, vsriq_n_u8(middle, low, 2), 2), 2);
  }
}

MXSPEC_INLINE void add_block(float* acc, int32x4_t sum, float scale, float32x4_t weight_scales) {
  vst1q_f32(acc, vfmaq_f32(vld1q_f32(acc), vmulq_n_f32(vcvtq_f32_s32(sum), scale), weight_scales));
}

// 2^(scale - 127); byte 0 is 2^-127, a subnormal.
MXSPEC_INLINE float32x4_t decode_scales(uint16x4_t scales) {
  return vreinterpretq_f32_u32(vmaxq_u32(vshlq_n_u32(vmovl_u16(scales), 23), vdupq_n_u32(0x00400000)));
}

// Of 16 rows.
struct WeightScales {
  float32x4_t of[4];

  MXSPEC_INLINE explicit WeightScales(const uint8_t* scales) {
    const uint8x16_t bytes = vld1q_u8(scales);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    of[0] = decode_scales(vget_low_u16(low));
    of[1] = decode_scales(vget_high_u16(low));
    of[2] = decode_scales(vget_low_u16(high));
    of[3] = decode_scales(vget_high_u16(high));
  }
};

}  // namespace
}  // namespace mxspec
