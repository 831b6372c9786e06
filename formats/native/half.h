// IEEE binary16 and bfloat16 by integer arithmetic: the reference for the instructions, and the way without them.
// Static, not inline: each instruction set's file keeps its own copy, compiled for it alone.
#pragma once

#include <cstdint>

namespace mxspec::formats {

[[maybe_unused]] static float bfloat16_to_float(uint16_t bits) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
}

[[maybe_unused]] static float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31;
  const uint32_t mantissa = half & 1023;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, magnitude) | sign);
  }
  if (exponent == 31) {  // NaN comes out quiet, as vcvtph2ps has it
    const uint32_t quiet = mantissa ? 0x00400000 : 0;
    return __builtin_bit_cast(float, sign | 0x7F800000 | quiet | mantissa << 13);
  }
  return __builtin_bit_cast(float, sign | (exponent + 112) << 23 | mantissa << 13);
}

// Round to nearest even, as vcvtps2ph does.
[[maybe_unused]] static uint16_t float_to_half(float value) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7C00);     // 65536 and above
  const bool subnormal = magnitude < 0x38800000;                                // below 2^-14
  if (subnormal && magnitude < 0x33000000) return static_cast<uint16_t>(sign);  // below 2^-25
  const uint32_t drop = subnormal ? 126 - (magnitude >> 23) : 13;               // bits that go
  const uint32_t full = subnormal ? (magnitude & 0x007FFFFF) | 0x00800000 : magnitude - 0x38000000;
  const uint32_t kept = full >> drop;
  const uint32_t rest = full & ((1u << drop) - 1);
  const uint32_t middle = 1u << (drop - 1);
  const uint32_t up = rest > middle || (rest == middle && (kept & 1));
  return static_cast<uint16_t>(sign | (kept + up));  // a carry into the exponent is the right next value, infinity too
}

}  // namespace mxspec::formats
