// The portable reference: what every other instruction set must equal, bit for bit.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/native/half.h"
#include "runtime/ops/kernels/isa_kernels.h"
#include "runtime/ops/kernels/matmul/quantise_impl.h"

namespace mxspec {
namespace {

struct ScalarBlock {
  float x[32];

  static ScalarBlock load(const float* values) {
    ScalarBlock block;
    std::memcpy(block.x, values, sizeof block.x);
    return block;
  }
  uint32_t largest() const {
    uint32_t most = 0;
    for (const float value : x) most = std::max(most, std::bit_cast<uint32_t>(value) & kMagnitudeMask);
    return most;
  }
  void store(float inverse, int16_t* q) const {
    for (size_t i = 0; i < 32; ++i) q[i] = inverse == 0 ? 0 : static_cast<int16_t>(std::lrint(x[i] * inverse));
  }
};

// Weight (row, k) of a block goes to [k / 2][row][k % 2].
template <int kBits>
void decode(const uint8_t* codes, const uint8_t* weight_scales, size_t blocks, const WeightElement& element,
            Decoded to) {
  auto* weights = static_cast<int16_t*>(to.weights);
  for (size_t i = 0; i < blocks * kTileRows; ++i) {
    to.scales[i] = std::bit_cast<float>(std::max(static_cast<uint32_t>(weight_scales[i]) << 23, 0x00400000u));
  }
  for (size_t block = 0; block < blocks; ++block, codes += formats::code_bytes(kBits), weights += kTileRows * kBlock) {
    for (size_t row = 0; row < kTileRows; ++row) {
      uint8_t of_row[kBlock];
      formats::row_codes<kBits>(codes, static_cast<int>(row), of_row);
      for (size_t k = 0; k < kBlock; ++k) {
        weights[k / 2 * 32 + row * 2 + k % 2] =
            kBits == 8 ? static_cast<int8_t>(of_row[k]) : element.table[of_row[k] & 63];
      }
    }
  }
}

template <size_t kRows>
void multiply_decoded(Decoded decoded, size_t blocks, QuantisedGroup group, float* acc) {
  const auto* weights = static_cast<const int16_t*>(decoded.weights);
  for (size_t block = 0; block < blocks; ++block) {
    for (size_t row = 0; row < kRows; ++row) {
      const int16_t* q = reinterpret_cast<const int16_t*>(group.q) + (block * kRows + row) * kBlock;
      int32_t sums[kTileRows] = {};
      for (size_t v = 0; v < kBlock / 2; ++v) {
        const int16_t* w = weights + (block * kBlock / 2 + v) * 32;
        for (size_t i = 0; i < kTileRows; ++i) sums[i] += w[2 * i] * q[2 * v] + w[2 * i + 1] * q[2 * v + 1];
      }
      const float scale = group.scales[block * kRows + row];
      for (size_t i = 0; i < kTileRows; ++i) {
        float& out = acc[row * kTileRows + i];
        out = std::fma(static_cast<float>(sums[i]) * scale, decoded.scales[block * kTileRows + i], out);
      }
    }
  }
}

template <size_t kRows>
void multiply_fp16(const uint8_t* weights, size_t, size_t, size_t k_count, const float* values, float* acc) {
  for (size_t k = 0; k < k_count; ++k) {
    float w[kTileRows];
    for (size_t i = 0; i < kTileRows; ++i) {
      uint16_t half;
      std::memcpy(&half, weights + (k * kTileRows + i) * 2, sizeof half);
      w[i] = formats::half_to_float(half);
    }
    for (size_t row = 0; row < kRows; ++row) {
      const float x = values[(k / kBlock * kRows + row) * kBlock + k % kBlock];
      for (size_t i = 0; i < kTileRows; ++i) acc[row * kTileRows + i] = std::fma(w[i], x, acc[row * kTileRows + i]);
    }
  }
}

template <int kBits>
constexpr MxKernels kMx = {
    .most_rows = 4,
    .group_rows = 4,
    .starts = Starts::kNone,
    .tiles = {},
    .multiply_packed = {},
    .decode = decode<kBits>,
    .multiply_decoded = {nullptr, multiply_decoded<1>, multiply_decoded<2>, multiply_decoded<3>, multiply_decoded<4>},
};

}  // namespace

constinit const RowQuantisers kQuantiseScalar = {quantise_row<ScalarBlock, int16_t>, nullptr};
constinit const MxKernelsByBits kInt16Scalar = {kMx<4>, kMx<6>, kMx<8>};
constinit const Fp16Kernels kFp16Scalar = {
    .most_rows = 4,
    .group_rows = 4,
    .tiles = {0, 1, 1, 1, 1},
    .multiply = {nullptr, multiply_fp16<1>, multiply_fp16<2>, multiply_fp16<3>, multiply_fp16<4>},
};

}  // namespace mxspec
