// What an instruction set must provide: the work on one tile of 16 rows by 32 columns that is already in float32.
#pragma once

#include <cstdint>

#include "formats/native/codec.h"
#include "formats/native/weight_formats.h"

namespace mxspec::formats {

struct alignas(64) ValueTile {
  float of[kTileRows][kBlock];
};

// Running sums of one row tile. Sixteen lanes (column modulo 16) in a fixed order make the sums, like the bytes, the
// same on every instruction set: blocks in order, rows in order, then the first half of the block before the second.
struct alignas(64) TileSums {
  double error[16];
  double norm[16];
  int64_t nonfinite;
  int64_t overflow;
  int64_t underflow;
};

// 2^(127 - byte), what a scale byte below 255 multiplies values with. At 254 (INT8 alone comes so far) a subnormal.
inline constexpr uint32_t kSmallestInverse = 0x00400000;
constexpr float inverse_scale(int byte) {
  return __builtin_bit_cast(float, byte < 254 ? static_cast<uint32_t>(254 - byte) << 23 : kSmallestInverse);
}

struct Kernels {
  const char* name;
  // Widens a whole 16 x 32 tile: 16 lines of 32 entries, or when transposed 32 lines of 16. `stride` in entries.
  void (*load)(const void* entries, int32_t type, bool transposed, int64_t stride, ValueTile& values);
  // Codes and scales of a tile, its rows one MX block each.
  void (*quantize)(const ValueTile& values, int32_t element, int32_t rounding, Pairs& codes, uint8_t* scales,
                   TileSums& sums);
  void (*pack)(const Pairs& codes, int bits, uint8_t* tile);
  // fp16 values of a tile, [column][row].
  void (*pack_half)(const ValueTile& values, uint16_t* tile, TileSums& sums);
};

extern const Kernels kKernelsScalar, kKernelsAvx2, kKernelsAvx512, kKernelsNeon;

// The kernels of a name, or the widest for a null or empty one. Both return an mxspec_status.
int32_t find_kernels(const char* wanted, const Kernels** kernels);

// Follows MXSPEC_ISA.
int32_t choose_kernels(const Kernels** kernels);

}  // namespace mxspec::formats
