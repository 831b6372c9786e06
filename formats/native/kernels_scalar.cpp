// The reference: one entry at a time, integers wherever a float would hide the rule. The fast files must equal it.
#include "formats/native/half.h"
#include "formats/native/kernels.h"

namespace mxspec::formats {
namespace {

float widen(const void* entries, int32_t type, int64_t index) {
  if (type == MXSPEC_FLOAT32) return static_cast<const float*>(entries)[index];
  const uint16_t bits = static_cast<const uint16_t*>(entries)[index];
  return type == MXSPEC_FLOAT16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

void load(const void* entries, int32_t type, bool transposed, int64_t stride, ValueTile& values) {
  for (int row = 0; row < kTileRows; ++row)
    for (int column = 0; column < kBlock; ++column)
      values.of[row][column] = widen(entries, type, transposed ? column * stride + row : row * stride + column);
}

// Scale byte of a block: floor(log2(largest magnitude)) - emax + 127 from the bits of the largest magnitude, at least
// 0. Zeros and float32 subnormals have exponent bits 0 and land on 0.
int scale_byte(uint32_t largest_bits, const Element& element) {
  const int byte = static_cast<int>(largest_bits >> 23) - element.largest_exponent;
  return byte > 0 ? byte : 0;
}

// Code of a magnitude in units of the scale. The magnitude is significand * 2^(exponent); the element keeps the bits
// down to 2^step, where step is that of its binade or of the subnormals.
int magnitude_code(float magnitude, const Element& element, int32_t rounding) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, magnitude);
  const int biased = static_cast<int>(bits >> 23);
  if (biased == 0) return 0;  // below 2^-126
  const int exponent = biased - 127;
  const uint32_t significand = (bits & 0x007FFFFF) | 0x00800000;  // times 2^(exponent - 23)
  const int least = 1 - element.bias;                             // exponent of the smallest normal
  const int step = (exponent > least ? exponent : least) - element.mantissa_bits;
  const int drop = step - (exponent - 23);
  if (drop > 24) return 0;  // below half a step
  const uint32_t kept = significand >> drop;
  const uint32_t rest = significand & ((1u << drop) - 1);
  const uint32_t middle = 1u << (drop - 1);
  const bool tie_up = rounding == MXSPEC_AWAY || (kept & 1) != 0;
  const int rounded = static_cast<int>(kept) + (rest > middle || (rest == middle && tie_up));
  // kept holds the hidden bit when normal: the codes of the binades below it come on top, and a carry moves up one.
  const int below = exponent > least ? (exponent - least) << element.mantissa_bits : 0;
  const int code = rounded + below;
  return code < element.largest_code() ? code : element.largest_code();
}

uint32_t signed_code(int code, bool negative, const Element& element) {
  if (!negative) return static_cast<uint32_t>(code);
  return static_cast<uint32_t>(element.is_integer() ? -code & (element.codes() - 1) : code | element.sign());
}

void quantize(const ValueTile& values, int32_t number, int32_t rounding, Pairs& codes, uint8_t* scales,
              TileSums& sums) {
  const Element& element = element_of(number);
  for (int row = 0; row < kTileRows; ++row) {
    const float* block = values.of[row];
    uint32_t largest = 0;
    for (int column = 0; column < kBlock; ++column) {
      const uint32_t magnitude = __builtin_bit_cast(uint32_t, block[column]) & 0x7FFFFFFF;
      if (magnitude >= 0x7F800000) ++sums.nonfinite;
      if (magnitude > largest) largest = magnitude;
    }
    for (uint32_t& pair : codes.of[row]) pair = 0;
    if (largest >= 0x7F800000) {
      scales[row] = kNaNScale;
      continue;
    }
    const int byte = scale_byte(largest, element);
    const float inverse = inverse_scale(byte);
    const double squared_scale = __builtin_bit_cast(double, static_cast<uint64_t>(1023 + 2 * (byte - 127)) << 52);
    scales[row] = static_cast<uint8_t>(byte);
    float error[16] = {}, norm[16] = {};
    for (int column = 0; column < kBlock; ++column) {
      const float value = block[column];
      const float magnitude = __builtin_fabsf(value) * inverse;
      const int code = magnitude_code(magnitude, element, rounding);
      codes.of[row][column / 2] |= signed_code(code, value < 0, element) << 16 * (column % 2);  // -0.0 keeps no sign
      const float difference = magnitude - element.value(code);
      error[column % 16] += difference * difference;
      norm[column % 16] += magnitude * magnitude;
      sums.underflow += code == 0 && value != 0;
    }
    for (int lane = 0; lane < 16; ++lane) {
      sums.error[lane] += static_cast<double>(error[lane]) * squared_scale;
      sums.norm[lane] += static_cast<double>(norm[lane]) * squared_scale;
    }
  }
}

void pack(const Pairs& codes, int bits, uint8_t* tile) {
  for (int row = 0; row < kTileRows; ++row) {
    uint32_t quads[kQuads];
    for (int q = 0; q < kQuads; ++q) quads[q] = codes.of[row][2 * q] | codes.of[row][2 * q + 1] << 8;
    join_runs(bits, quads, [&](int run, uint32_t quad) {
      __builtin_memcpy(tile + run * kRunBytes + row * sizeof quad, &quad, sizeof quad);
    });
  }
}

void pack_half(const ValueTile& values, uint16_t* tile, TileSums& sums) {
  for (int row = 0; row < kTileRows; ++row) {
    for (int column = 0; column < kBlock; ++column) {
      const float value = values.of[row][column];
      const uint32_t magnitude = __builtin_bit_cast(uint32_t, value) & 0x7FFFFFFF;
      const uint16_t half = float_to_half(value);
      tile[column * kTileRows + row] = half;
      if (magnitude >= 0x7F800000) {
        ++sums.nonfinite;
      } else if (magnitude > 0x477FE000) {  // 65504
        ++sums.overflow;
      } else {
        const double difference = static_cast<double>(value) - static_cast<double>(half_to_float(half));
        sums.error[column % 16] += difference * difference;
        sums.norm[column % 16] += static_cast<double>(value) * static_cast<double>(value);
        sums.underflow += magnitude != 0 && (half & 0x7FFF) == 0;
      }
    }
  }
}

}  // namespace

constinit const Kernels kKernelsScalar = {"scalar", load, quantize, pack, pack_half};

}  // namespace mxspec::formats
