#if defined(__aarch64__)
#include <arm_neon.h>

#include <utility>

#include "runtime/ops/kernels/compiler.h"
#include "runtime/ops/kernels/matmul_kernels.h"

namespace mxspec {
namespace {

// Nothing is loaded earlier, or kept in registers for later, across this: GCC 12 would do both until the sums no longer
// fit. The product of six rows takes a quarter fewer instructions with it.
MXSPEC_INLINE void keep_in_order() { asm volatile("" ::: "memory"); }

// Lanes of a register must be constants: loops over them are folds over these.
constexpr std::make_index_sequence<8> kEight;

// One byte of each of 64 int16: a look-up finds 16 of them.
using Table = uint8x16x4_t;
MXSPEC_INLINE Table table_of(const Mxfp6Element& element, int shift) {
  uint8_t bytes[64];
  for (size_t i = 0; i < 64; ++i) bytes[i] = static_cast<uint8_t>(element.table[i] >> shift);
  return vld1q_u8_x4(bytes);
}

// Sixteen words, of 8 rows x 2 k, as their low and their high bytes.
struct Words {
  uint8x16_t low, high;

  MXSPEC_INLINE explicit Words(const uint8_t* bytes) {  // vld2q_u8 would do: but GCC 12 stores and reloads its result
    const uint8x16_t first = vld1q_u8(bytes), second = vld1q_u8(bytes + 16);
    low = vuzp1q_u8(first, second);
    high = vuzp2q_u8(first, second);
  }
};

// 8 rows of half a tile (matmul_scalar.cpp has the picture). Even bytes are of even k, odd ones of odd k.
struct HalfTile {
  Words w0, w1, w2;

  MXSPEC_INLINE explicit HalfTile(const uint8_t* bytes) : w0(bytes), w1(bytes + 64), w2(bytes + 128) {}

  // A vector of codes. The high 2 bits of its bytes are 0: a look-up regards them.
  template <size_t kVector>
  MXSPEC_INLINE uint8x16_t codes() const {
    const uint8x16_t mask = vdupq_n_u8(63);
    const Words& w = kVector < 2 ? w0 : kVector < 4 ? w1 : w2;
    if constexpr (kVector == 6) {
      return vandq_u8(vsriq_n_u8(w2.high, w0.high, 4), mask);
    } else if constexpr (kVector == 7) {
      return vsriq_n_u8(vshrq_n_u8(w2.high, 2), w1.high, 4);
    } else if constexpr (kVector % 2 == 0) {
      return vandq_u8(w.low, mask);
    } else {
      return vandq_u8(vsriq_n_u8(vshlq_n_u8(w.high, 2), w.low, 6), mask);
    }
  }
};

template <size_t kVector, class Use>
MXSPEC_INLINE void look_up(const HalfTile& half, Table low, Table high, const Use& use) {
  const uint8x16_t codes = half.codes<kVector>();
  const uint8x16_t low_bytes = vqtbl4q_u8(low, codes), high_bytes = vqtbl4q_u8(high, codes);
  use(std::integral_constant<size_t, kVector>{}, vreinterpretq_s16_u8(vtrn1q_u8(low_bytes, high_bytes)),
      vreinterpretq_s16_u8(vtrn2q_u8(low_bytes, high_bytes)));
}

// Hands 8 rows of half a tile to use(v, even, odd): the 8 weights at k = 2 v and those at 2 v + 1. The tables come by
// value: by way of a lambda's captures they would lie in memory.
template <class Use, size_t... kVector>
MXSPEC_INLINE void for_decoded(const uint8_t* words, Table low, Table high, const Use& use,
                               std::index_sequence<kVector...>) {
  const HalfTile half(words);
  (look_up<kVector>(half, low, high, use), ...);
}

// Adds the products of 8 weights and a lane of x to two registers of sums.
template <size_t kLane>
MXSPEC_INLINE void add_products(int32x4_t* sums, int16x8_t weights, int16x8_t x) {
  sums[0] = vmlal_laneq_s16(sums[0], vget_low_s16(weights), x, kLane);
  sums[1] = vmlal_high_laneq_s16(sums[1], weights, x, kLane);
}

MXSPEC_INLINE void add_block(float* acc, int32x4_t sum, float scale, float32x4_t weight_scales) {
  vst1q_f32(acc, vfmaq_f32(vld1q_f32(acc), vmulq_n_f32(vcvtq_f32_s32(sum), scale), weight_scales));
}

// 2^(scale - 127); byte 0 is 2^-127, a subnormal.
MXSPEC_INLINE float32x4_t decode_scales(uint16x4_t scales) {
  return vreinterpretq_f32_u32(vmaxq_u32(vshlq_n_u32(vmovl_u16(scales), 23), vdupq_n_u32(0x00400000)));
}

template <size_t kRows>
void multiply_packed(const uint8_t* codes, const uint8_t* weight_scales, size_t, const uint8_t*, size_t k_blocks,
                     const Mxfp6Element& element, QuantisedGroup group, float* acc) {
  const Table low = table_of(element, 0), high = table_of(element, 8);
  for (size_t i = 0; i < kRows * kTileRows; i += 4) vst1q_f32(acc + i, vdupq_n_f32(0));
  for (size_t block = 0; block < k_blocks; ++block, codes += kMxfp6TileBytes, weight_scales += kTileRows) {
    const int16_t* q = group.q + block * kRows * kBlock;
    for (size_t i = 0; i < kTileRows; i += 8) {
      int32x4_t sums[kRows][2];
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = vdupq_n_s32(0);
      for (size_t half = 0; half < 2; ++half) {
        int16x8_t x[kRows];
        for_decoded(
            codes + half * 192 + i * 4, low, high,
            [&](auto v, int16x8_t even, int16x8_t odd) MXSPEC_LAMBDA {
              constexpr size_t kLane = v % 4 * 2;
              MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
                if constexpr (kLane == 0) x[r] = vld1q_s16(q + r * kBlock + half * 16 + v * 2);
                add_products<kLane>(sums[r], even, x[r]);
                add_products<kLane + 1>(sums[r], odd, x[r]);
              }
              if constexpr (kRows > 4) keep_in_order();
            },
            kEight);
      }
      const uint16x8_t scales = vmovl_u8(vld1_u8(weight_scales + i));
      const float32x4_t s0 = decode_scales(vget_low_u16(scales)), s1 = decode_scales(vget_high_u16(scales));
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const float scale = group.scales[block * kRows + r];
        add_block(acc + r * kTileRows + i, sums[r][0], scale, s0);
        add_block(acc + r * kTileRows + i + 4, sums[r][1], scale, s1);
      }
      keep_in_order();
    }
  }
}

// A vector holds the 16 rows at an even k, then those at the odd one.
void decode(const uint8_t* codes, size_t blocks, const Mxfp6Element& element, int16_t* weights) {
  const Table low = table_of(element, 0), high = table_of(element, 8);
  for (size_t half = 0; half < blocks * 2; ++half, codes += 192, weights += 8 * 32) {
    for (size_t i = 0; i < kTileRows; i += 8) {
      for_decoded(
          codes + i * 4, low, high,
          [&](auto v, int16x8_t even, int16x8_t odd) MXSPEC_LAMBDA {
            vst1q_s16(weights + v * 32 + i, even);
            vst1q_s16(weights + v * 32 + 16 + i, odd);
          },
          kEight);
    }
  }
}

template <size_t kRows, size_t... kLane>
MXSPEC_INLINE void add_eight(int32x4_t (&sums)[kRows][4], const int16_t* weights, const int16_t* q,
                             std::index_sequence<kLane...>) {
  int16x8_t x[kRows];
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) x[r] = vld1q_s16(q + r * kBlock);
  const auto add_one = [&](auto lane) MXSPEC_LAMBDA {
    const int16x8_t low = vld1q_s16(weights + lane * kTileRows), high = vld1q_s16(weights + lane * kTileRows + 8);
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      add_products<lane>(sums[r], low, x[r]);
      add_products<lane>(sums[r] + 2, high, x[r]);
    }
    keep_in_order();
  };
  (add_one(std::integral_constant<size_t, kLane>{}), ...);
}

template <size_t kRows>
void multiply_decoded(const int16_t* weights, const float* weight_scales, size_t blocks, QuantisedGroup group,
                      float* acc) {
  for (size_t block = 0; block < blocks; ++block) {
    int32x4_t sums[kRows][4];
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 4; ++i) sums[i / 4][i % 4] = vdupq_n_s32(0);
    for (size_t k = 0; k < kBlock; k += 8, weights += 8 * kTileRows) {
      add_eight(sums, weights, group.q + block * kRows * kBlock + k, kEight);
    }
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 4; ++i) {
      add_block(acc + i * 4, sums[i / 4][i % 4], group.scales[block * kRows + i / 4],
                vld1q_f32(weight_scales + block * kTileRows + i % 4 * 4));
    }
    keep_in_order();
  }
}

template <size_t kTiles, size_t kRows>
void multiply_fp16(const uint8_t* weights, size_t tile_bytes, size_t, size_t k_count, const float* values, float* out) {
  constexpr size_t kOutputs = kRows * kTiles;
  float32x4_t acc[kOutputs][4];
  MXSPEC_UNROLL for (size_t i = 0; i < kOutputs * 4; ++i) acc[i / 4][i % 4] = vld1q_f32(out + i * 4);
  for (size_t first = 0; first < k_count; first += kBlock, values += kRows * kBlock) {
    const size_t count = k_count - first < kBlock ? k_count - first : kBlock;
    for (size_t k = 0; k < count; ++k, weights += kTileRows * 2) {
      MXSPEC_UNROLL for (size_t t = 0; t < kTiles; ++t) {
        const uint8_t* of_tile = weights + t * tile_bytes;
        const float16x8_t low = vreinterpretq_f16_u8(vld1q_u8(of_tile)),
                          high = vreinterpretq_f16_u8(vld1q_u8(of_tile + 16));
        const float32x4_t w[4] = {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low),
                                  vcvt_f32_f16(vget_low_f16(high)), vcvt_high_f32_f16(high)};
        MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
          MXSPEC_UNROLL for (size_t i = 0; i < 4; ++i) {
            acc[r * kTiles + t][i] = vfmaq_n_f32(acc[r * kTiles + t][i], w[i], values[r * kBlock + k]);
          }
          if constexpr (kRows > 4) keep_in_order();
        }
      }
    }
  }
  MXSPEC_UNROLL for (size_t i = 0; i < kOutputs * 4; ++i) vst1q_f32(out + i * 4, acc[i / 4][i % 4]);
}

constexpr MatmulKernels kKernels = {
    .most_rows = 6,
    .group_rows = 6,
    .quantise_row = quantise_row_neon,
    .packed_tiles = {0, 1, 1, 1, 1, 1, 1},
    .multiply_packed = {nullptr, multiply_packed<1>, multiply_packed<2>, multiply_packed<3>, multiply_packed<4>,
                        multiply_packed<5>, multiply_packed<6>},
    .decode = decode,
    .multiply_decoded = {nullptr, nullptr, nullptr, multiply_decoded<3>, multiply_decoded<4>, multiply_decoded<5>,
                         multiply_decoded<6>},
    // With few rows, several tiles: an addition to a sum waits for the one before, so there must be many sums.
    .fp16_tiles = {0, 4, 2, 1, 1, 1, 1},
    .multiply_fp16 = {nullptr, multiply_fp16<4, 1>, multiply_fp16<2, 2>, multiply_fp16<1, 3>, multiply_fp16<1, 4>,
                      multiply_fp16<1, 5>, multiply_fp16<1, 6>},
};

}  // namespace

const MatmulKernels& matmul_kernels_neon() { return kKernels; }

}  // namespace mxspec
#endif
