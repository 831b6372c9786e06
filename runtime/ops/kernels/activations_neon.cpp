#if defined(__aarch64__)
#include <arm_neon.h>

#include "runtime/ops/kernels/activations.h"

namespace mxspec {

RowKind quantise_row_neon(const float* row, size_t k, int unit_exponent, size_t rows, int16_t* q, float* scales) {
  uint32_t least = 255, most = 0;
  bool finite = true;
  const size_t k_blocks = (k + 31) / 32;
  float last_block[32] = {};
  for (size_t block = 0; block < k_blocks; ++block, row += 32) {
    const float* values = row;
    if (k - block * 32 < 32) {
      __builtin_memcpy(last_block, row, (k - block * 32) * sizeof(float));
      values = last_block;
    }
    float32x4_t x[8];
    uint32x4_t magnitudes = vdupq_n_u32(0);
    for (size_t i = 0; i < 8; ++i) {
      x[i] = vld1q_f32(values + i * 4);
      magnitudes = vmaxq_u32(magnitudes, vandq_u32(vreinterpretq_u32_f32(x[i]), vdupq_n_u32(kMagnitudeMask)));
    }
    const uint32_t magnitude = vmaxvq_u32(magnitudes), exponent = rounded_exponent(magnitude);
    finite &= magnitude < kNotFiniteBits;
    if (magnitude != 0) {
      least = exponent < least ? exponent : least;
      most = exponent > most ? exponent : most;
    }
    const bool in_range = exponent >= least_exponent(unit_exponent) && exponent <= most_exponent(unit_exponent);
    const float32x4_t inverse = vreinterpretq_f32_u32(vdupq_n_u32(in_range ? inverse_quantum_bits(exponent) : 0));
    int16_t* out = q + block * rows * 32;
    for (size_t i = 0; i < 8; i += 2) {
      // Rounds to nearest even; the values fit int16.
      const int32x4_t low = vcvtnq_s32_f32(vmulq_f32(x[i], inverse)),
                      high = vcvtnq_s32_f32(vmulq_f32(x[i + 1], inverse));
      vst1q_s16(out + i * 4, vmovn_high_s32(vmovn_s32(low), high));
    }
    const uint32_t bits = in_range ? scale_bits(exponent, unit_exponent) : 0;
    __builtin_memcpy(scales + block * rows, &bits, sizeof bits);
  }
  return finish_quantised_row(finite, least, most, unit_exponent, k_blocks, rows, q, scales);
}

}  // namespace mxspec
#endif
