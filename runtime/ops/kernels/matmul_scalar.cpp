// The portable reference: what every other instruction set must equal, bit for bit.
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/ops/kernels/matmul_kernels.h"

namespace mxspec {
namespace {

uint16_t load16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

// Half a tile is three vectors of 32 words. Lane by lane they hold eight codes c0..c7, one for each vector of codes:
//   word 0   c6[3:0] c1 c0        word 1   c7[3:0] c3 c2        word 2   c7[5:4] c6[5:4] c5 c4
void unpack_half_lane(const uint8_t* words, unsigned codes[8]) {
  const unsigned w0 = load16(words), w1 = load16(words + 64), w2 = load16(words + 128);
  codes[0] = w0 & 63;
  codes[1] = w0 >> 6 & 63;
  codes[2] = w1 & 63;
  codes[3] = w1 >> 6 & 63;
  codes[4] = w2 & 63;
  codes[5] = w2 >> 6 & 63;
  codes[6] = w0 >> 12 | (w2 >> 12 & 3) << 4;
  codes[7] = w1 >> 12 | (w2 >> 14 & 3) << 4;
}

void decode(const uint8_t* codes, size_t blocks, const Mxfp6Element& element, int16_t* weights) {
  for (size_t half = 0; half < blocks * 2; ++half, codes += kMxfp6TileBytes / 2) {
    for (size_t lane = 0; lane < 32; ++lane) {
      unsigned code[8];
      unpack_half_lane(codes + lane * 2, code);
      for (size_t v = 0; v < 8; ++v) weights[(half * 8 + v) * 32 + lane] = element.table[code[v]];
    }
  }
}

template <size_t kRows>
void multiply_decoded(const int16_t* weights, const float* weight_scales, size_t blocks, QuantisedGroup group,
                      float* acc) {
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t row = 0; row < kRows; ++row) {
      const int16_t* q = group.q + (block * kRows + row) * kBlock;
      int32_t sums[kTileRows] = {};
      for (size_t v = 0; v < kTileVectors; ++v) {
        const int16_t* w = weights + (block * kTileVectors + v) * 32;
        for (size_t i = 0; i < kTileRows; ++i) sums[i] += w[2 * i] * q[2 * v] + w[2 * i + 1] * q[2 * v + 1];
      }
      const float scale = group.scales[block * kRows + row];
      for (size_t i = 0; i < kTileRows; ++i) {
        float& out = acc[row * kTileRows + i];
        out = std::fma(static_cast<float>(sums[i]) * scale, weight_scales[block * kTileRows + i], out);
      }
    }
  }
}

float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  if (magnitude > 0x7C00) return std::bit_cast<float>(sign | 0x7FC00000 | (magnitude & 0x3FF) << 13);
  if (magnitude == 0x7C00) return std::bit_cast<float>(sign | 0x7F800000);
  if (magnitude >= 0x0400) return std::bit_cast<float>(sign | ((magnitude << 13) + ((127 - 15) << 23)));
  const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
  return sign ? -subnormal : subnormal;
}

template <size_t kRows>
void multiply_fp16(const uint8_t* weights, size_t, size_t, size_t k_count, const float* values, float* acc) {
  for (size_t k = 0; k < k_count; ++k) {
    float w[kTileRows];
    for (size_t i = 0; i < kTileRows; ++i) w[i] = half_to_float(load16(weights + (k * kTileRows + i) * 2));
    for (size_t row = 0; row < kRows; ++row) {
      const float x = values[(k / kBlock * kRows + row) * kBlock + k % kBlock];
      for (size_t i = 0; i < kTileRows; ++i) acc[row * kTileRows + i] = std::fma(w[i], x, acc[row * kTileRows + i]);
    }
  }
}

constexpr MatmulKernels kKernels = {
    .most_rows = 4,
    .group_rows = 4,
    .quantise_row = quantise_row_scalar,
    .packed_tiles = {},
    .multiply_packed = {},
    .decode = decode,
    .multiply_decoded = {nullptr, multiply_decoded<1>, multiply_decoded<2>, multiply_decoded<3>, multiply_decoded<4>},
    .fp16_tiles = {0, 1, 1, 1, 1},
    .multiply_fp16 = {nullptr, multiply_fp16<1>, multiply_fp16<2>, multiply_fp16<3>, multiply_fp16<4>},
};

}  // namespace

const MatmulKernels& matmul_kernels_scalar() { return kKernels; }

}  // namespace mxspec
