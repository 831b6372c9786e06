// int8 rows with the dot products of ARMv8.2: four rows of a vector of codes are one register, and a lane of a row's
// values holds what all four are multiplied with.
#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/matmul_neon_tiles.h"

namespace mxspec {
namespace {

MXSPEC_INLINE Table table_of(const WeightElement& element) {
  Table table;
  for (size_t i = 0; i < 4; ++i) table.val[i] = vld1q_u8(reinterpret_cast<const uint8_t*>(element.bytes) + i * 16);
  return table;
}

template <int kBits>
MXSPEC_INLINE int8x16_t weights_of(uint8x16_t codes, Table table) {
  if constexpr (kBits == 8) return vreinterpretq_s8_u8(codes);
  if constexpr (kBits == 4) return vreinterpretq_s8_u8(vqtbl1q_u8(table.val[0], codes));
  return vreinterpretq_s8_u8(vqtbl4q_u8(table, codes));
}

// The sums of one block: kRows rows times 16 output rows.
template <int kBits, size_t kRows, size_t... kQuad>
MXSPEC_INLINE void add_half(int32x4_t (&sums)[kRows][4], const uint8_t* half, const int8_t* q, Table table,
                            std::index_sequence<kQuad...>) {
  int8x16_t x[kRows];
  MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) x[r] = vld1q_s8(q + r * kBlock);
  const auto add_quad = [&](auto quad) MXSPEC_LAMBDA {
    MXSPEC_UNROLL for (size_t i = 0; i < 4; ++i) {
      const int8x16_t weights = weights_of<kBits>(codes_of<kBits, quad>(half + i * 16), table);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) sums[r][i] = vdotq_laneq_s32(sums[r][i], weights, x[r], quad);
    }
  };
  (add_quad(std::integral_constant<size_t, kQuad>{}), ...);
}

template <int kBits, size_t kRows>
void multiply_packed(const uint8_t* codes, const uint8_t* weight_scales, size_t, const uint8_t*, size_t k_blocks,
                     const WeightElement& element, QuantisedGroup group, float* acc) {
  constexpr size_t kTileCodeBytes = static_cast<size_t>(formats::code_bytes(kBits));
  const Table table = table_of(element);
  for (size_t i = 0; i < kRows * kTileRows; i += 4) vst1q_f32(acc + i, vdupq_n_f32(0));
  for (size_t block = 0; block < k_blocks; ++block, codes += kTileCodeBytes, weight_scales += kTileRows) {
    const auto* q = reinterpret_cast<const int8_t*>(group.q) + block * kRows * kBlock;
    int32x4_t sums[kRows][4];
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 4; ++i) sums[i / 4][i % 4] = vdupq_n_s32(0);
    for (size_t half = 0; half < 2; ++half) {
      add_half<kBits>(sums, codes + half * kTileCodeBytes / 2, q + half * 16, table, std::make_index_sequence<4>{});
    }
    const WeightScales scales(weight_scales);
    MXSPEC_UNROLL for (size_t i = 0; i < kRows * 4; ++i) {
      add_block(acc + i * 4, sums[i / 4][i % 4], group.scales[block * kRows + i / 4], scales.of[i % 4]);
    }
    keep_in_order();
  }
}

// Decoding is a look-up for four rows of output, so there are kernels for any number of rows, and none that keep
// decoded weights.
template <int kBits>
constexpr MxKernels kMx = {
    .most_rows = 4,
    .group_rows = 4,
    .starts = Starts::kNone,
    .tiles = {0, 1, 1, 1, 1},
    .multiply_packed = {nullptr, multiply_packed<kBits, 1>, multiply_packed<kBits, 2>, multiply_packed<kBits, 3>,
                        multiply_packed<kBits, 4>},
    .decode = nullptr,
    .multiply_decoded = {},
};

}  // namespace

constinit const MxKernelsByBits kInt8NeonDot = {kMx<4>, kMx<6>, kMx<8>};

}  // namespace mxspec
