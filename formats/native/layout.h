// Sizes and bit positions of the kernel tiles. docs/formats.md has the picture and a worked example.
#pragma once

#include <cstdint>

#include "formats/native/codec.h"

namespace mxspec::formats {

inline constexpr int kTileRows = 16;                            // output rows of a tile
inline constexpr int kBlock = 32;                               // columns of a tile: one MX block
inline constexpr int kVectors = kBlock / 2;                     // a vector of a tile holds two columns of its 16 rows
inline constexpr int kTileCodes = kTileRows * kBlock;           // 512
inline constexpr int kTileCodeBytes = kTileCodes * 6 / 8;       // 384
inline constexpr int kBlockBytes = kTileCodeBytes + kTileRows;  // with the scales, which follow behind all codes
inline constexpr int kHalfTileBytes = kTileCodes * 2;
static_assert(kTileCodeBytes == 384 && kBlockBytes == 400 && kHalfTileBytes == 1024);

constexpr int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// Two codes a uint32, for each row of a tile and each of its 16 pairs of columns: code(2v) | code(2v + 1) << 16.
struct Pairs {
  uint32_t of[kTileRows][kVectors];
};

// The code bytes of a tile. `word` lane of a row: its even column in the low 16 bits, its odd one in the high 16.
struct CodeTile {
  uint32_t word[2][3][kTileRows];  // [vectors 0..7, 8..15][W0, W1, W2][row]
};
static_assert(sizeof(CodeTile) == kTileCodeBytes);

// Eight vectors of codes in three words, for both 16-bit lanes of the uint32 at once.
//   W0 = c0 | c1 << 6 | (c6 & 15) << 12
//   W1 = c2 | c3 << 6 | (c7 & 15) << 12
//   W2 = c4 | c5 << 6 | (c6 >> 4) << 12 | (c7 >> 4) << 14
inline constexpr uint32_t kLow2 = 0x00030003, kLow4 = 0x000F000F, kLow6 = 0x003F003F;

// An element format: sign, exponent, mantissa in the low six bits of a byte.
struct Element {
  int mantissa_bits;
  int bias;
  int largest_exponent;  // of the largest code: OCP MX v1.0, table 1 (emax)

  constexpr int step_exponent() const { return 1 - bias - mantissa_bits; }  // subnormals are multiples of 2^this
};
inline constexpr Element kE3M2{2, 3, 4};
inline constexpr Element kE2M3{3, 1, 2};
inline constexpr int kLargestCode = 31;  // without the sign
inline constexpr int kSign = 32;
inline constexpr int kNaNScale = 255;

}  // namespace mxspec::formats
