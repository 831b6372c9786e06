// A row of a cache of CacheKind::kMxInt8: head_size elements, then a scale for each 32 of them (OCP MX 1.0,
// section 6.3).
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/ops/kernels/attention/attention.h"

namespace mxspec {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffff;
constexpr uint32_t kNoScale = 255;  // of a block with infinity or NaN, whose elements are 0

inline float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// 2^(byte - 127), or NaN.
inline float scale_of(uint8_t byte) {
  const uint32_t normal = static_cast<uint32_t>(byte) << 23;
  return from_bits(byte == 0 ? 1u << 22 : byte == kNoScale ? 0x7fc00000 : normal);
}

// 32 values to elements of step 2^(scale - 127 - 6), rounded to nearest even, at most 127; the scale byte.
inline uint8_t store_block(const float* values, int8_t* elements) {
  uint32_t largest = 0;
  for (size_t i = 0; i < kCacheBlock; ++i) {
    const uint32_t magnitude = __builtin_bit_cast(uint32_t, values[i]) & kMagnitude;
    largest = magnitude > largest ? magnitude : largest;
  }
  const uint32_t scale = largest >> 23;  // floor(log2) of the largest magnitude, biased
  if (scale == kNoScale) {
    for (size_t i = 0; i < kCacheBlock; ++i) elements[i] = 0;
    return kNoScale;
  }
  // 2^(6 + 127 - scale), in two factors because it may be above the largest float. Both products are exact.
  const uint32_t first = scale < 64 ? 64 : 0;
  const float up = from_bits((127 + first) << 23), up_again = from_bits((127 + 133 - scale - first) << 23);
  constexpr float kMagic = 12582912;  // 1.5 * 2^23: adding it rounds to an integer, to nearest even
  for (size_t i = 0; i < kCacheBlock; ++i) {
    const float rounded = values[i] * up * up_again + kMagic - kMagic;
    elements[i] = static_cast<int8_t>(rounded > 127 ? 127 : rounded < -127 ? -127 : rounded);
  }
  return static_cast<uint8_t>(scale);
}

}  // namespace
}  // namespace mxspec
