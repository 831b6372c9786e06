#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_neon_tiles.h"
#include "runtime/ops/kernels/matmul/quantise_neon.h"

namespace mxspec {
namespace {

// Lanes of a register must be constants: loops over them are folds over these.
constexpr std::make_index_sequence<8> kEight;
constexpr std::make_index_sequence<4> kFour;

struct Tables {
  Table low, high;  // bytes of the int16

  MXSPEC_INLINE explicit Tables(const WeightElement& element) {
    const auto* table = reinterpret_cast<const uint8_t*>(element.table);
    for (size_t i = 0; i < 4; ++i) {
      const uint8x16_t first = vld1q_u8(table + i * 32), second = vld1q_u8(table + i * 32 + 16);
      low.val[i] = vuzp1q_u8(first, second);
      high.val[i] = vuzp2q_u8(first, second);
    }
  }
};

// Four rows of a vector of codes as int16: [row][columns 0 1] and [row][columns 2 3].
template <int kBits>
struct FourColumns {
  int16x8_t first, second;

  MXSPEC_INLINE FourColumns(uint8x16_t codes, const Table& low, const Table& high) {
    if constexpr (kBits == 6) {
      const uint8x16_t low_bytes = vqtbl4q_u8(low, codes), high_bytes = vqtbl4q_u8(high, codes);
      first = vreinterpretq_s16_u8(vtrn1q_u8(low_bytes, high_bytes));
      second = vreinterpretq_s16_u8(vtrn2q_u8(low_bytes, high_bytes));
    } else {
      const uint8x16_t bytes = kBits == 4 ? vqtbl1q_u8(low.val[0], codes) : codes;
      first = vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_u8(bytes), 8), 8);
      second = vshrq_n_s16(vreinterpretq_s16_u8(bytes), 8);
    }
  }
};

// Hands 8 rows of half a tile to use(k, weights): the 8 weights at column k of the half.
template <int kBits, class Use, size_t... kQuad>
MXSPEC_INLINE void for_decoded(const uint8_t* half, Table low, Table high, const Use& use,
                               std::index_sequence<kQuad...>) {
  const auto decoded = [&](auto quad) MXSPEC_LAMBDA {
    constexpr size_t kColumn = quad * 4;
    const FourColumns<kBits> a(codes_of<kBits, quad>(half), low, high), b(codes_of<kBits, quad>(half + 16), low, high);
    use(std::integral_constant<size_t, kColumn>{}, vuzp1q_s16(a.first, b.first));
    use(std::integral_constant<size_t, kColumn + 1>{}, vuzp2q_s16(a.first, b.first));
    use(std::integral_constant<size_t, kColumn + 2>{}, vuzp1q_s16(a.second, b.second));
    use(std::integral_constant<size_t, kColumn + 3>{}, vuzp2q_s16(a.second, b.second));
  };
  (decoded(std::integral_constant<size_t, kQuad>{}), ...);
}

// Adds the products of 8 weights and a lane of x to two registers of sums.
template <size_t kLane>
MXSPEC_INLINE void add_products(int32x4_t* sums, int16x8_t weights, int16x8_t x) {
  sums[0] = vmlal_laneq_s16(sums[0], vget_low_s16(weights), x, kLane);
  sums[1] = vmlal_high_laneq_s16(sums[1], weights, x, kLane);
}

template <int kBits, size_t kRows>
void multiply_packed(const uint8_t* codes, const uint8_t* weight_scales, size_t, const uint8_t*, size_t k_blocks,
                     const WeightElement& element, QuantisedGroup group, float* acc) {
  constexpr size_t kTileCodeBytes = static_cast<size_t>(formats::code_bytes(kBits));
  const Tables tables(element);
  for (size_t i = 0; i < kRows * kTileRows; i += 4) vst1q_f32(acc + i, vdupq_n_f32(0));
  for (size_t block = 0; block < k_blocks; ++block, codes += kTileCodeBytes, weight_scales += kTileRows) {
    const auto* q = reinterpret_cast<const int16_t*>(group.q) + block * kRows * kBlock;
    for (size_t i = 0; i < kTileRows; i += 8) {
      int32x4_t sums[kRows][2];
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = vdupq_n_s32(0);
      for (size_t half = 0; half < 2; ++half) {
        int16x8_t x[kRows];
        for_decoded<kBits>(
            codes + half * kTileCodeBytes / 2 + i * 4, tables.low, tables.high,
            [&](auto k, int16x8_t weights) MXSPEC_LAMBDA {
              constexpr size_t kLane = k % 8;
              MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
                if constexpr (kLane == 0) x[r] = vld1q_s16(q + r * kBlock + half * 16 + k);
                add_products<kLane>(sums[r], weights, x[r]);
              }
              if constexpr (kRows > 4) keep_in_order();
            },
            kFour);
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

// Decoded: the 16 rows at k = 0, at 1 and so on.
template <int kBits>
void decode(const uint8_t* codes, const uint8_t* weight_scales, size_t blocks, const WeightElement& element,
            Decoded to) {
  constexpr size_t kHalfBytes = static_cast<size_t>(formats::code_bytes(kBits)) / 2;
  const Tables tables(element);
  auto* weights = static_cast<int16_t*>(to.weights);
  for (size_t block = 0; block < blocks; ++block) {
    const WeightScales scales(weight_scales + block * kTileRows);
    for (size_t i = 0; i < 4; ++i) vst1q_f32(to.scales + block * kTileRows + i * 4, scales.of[i]);
  }
  for (size_t half = 0; half < blocks * 2; ++half, codes += kHalfBytes, weights += 16 * kTileRows) {
    for (size_t i = 0; i < kTileRows; i += 8) {
      for_decoded<kBits>(
          codes + i * 4, tables.low, tables.high,
          [&](auto k, int16x8_t of_column) MXSPEC_LAMBDA { vst1q_s16(weights + k * kTileRows + i, of_column); }, kFour);
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
void multiply_decoded(Decoded decoded, size_t blocks, QuantisedGroup group, float* acc) {
  const auto* weights = static_cast<const int16_t*>(decoded.weights);
  const auto* q = reinterpret_cast<const int16_t*>(group.q);
  for (size_t block = 0; block < blocks; ++block) {
    int32x4_t sums[kRows][4];
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 4; ++i) sums[i / 4][i % 4] = vdupq_n_s32(0);
    for (size_t k = 0; k < kBlock; k += 8, weights += 8 * kTileRows) {
      add_eight(sums, weights, q + block * kRows * kBlock + k, kEight);
    }
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 4; ++i) {
      add_block(acc + i * 4, sums[i / 4][i % 4], group.scales[block * kRows + i / 4],
                vld1q_f32(decoded.scales + block * kTileRows + i % 4 * 4));
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

template <int kBits>
constexpr MxKernels kMx = {
    .most_rows = 6,
    .group_rows = 6,
    .starts = Starts::kNone,
    .tiles = {0, 1, 1, 1, 1, 1, 1},
    .multiply_packed = {nullptr, multiply_packed<kBits, 1>, multiply_packed<kBits, 2>, multiply_packed<kBits, 3>,
                        multiply_packed<kBits, 4>, multiply_packed<kBits, 5>, multiply_packed<kBits, 6>},
    .decode = decode<kBits>,
    .multiply_decoded = {nullptr, nullptr, nullptr, multiply_decoded<3>, multiply_decoded<4>, multiply_decoded<5>,
                         multiply_decoded<6>},
};

}  // namespace

constinit const RowQuantisers kQuantiseNeon = {quantise_row<NeonBlock, int16_t>, quantise_row<NeonBlock, int8_t>};
constinit const MxKernelsByBits kInt16Neon = {kMx<4>, kMx<6>, kMx<8>};
constinit const Fp16Kernels kFp16Neon = {
    .most_rows = 6,
    .group_rows = 6,
    // With few rows, several tiles: an addition to a sum waits for the one before, so there must be many sums.
    .tiles = {0, 4, 2, 1, 1, 1, 1},
    .multiply = {nullptr, multiply_fp16<4, 1>, multiply_fp16<2, 2>, multiply_fp16<1, 3>, multiply_fp16<1, 4>,
                 multiply_fp16<1, 5>, multiply_fp16<1, 6>},
};

}  // namespace mxspec
