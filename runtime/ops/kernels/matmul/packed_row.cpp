#include "runtime/ops/kernels/matmul/packed_row.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "formats/native/half.h"

namespace mxspec {
namespace {

using DecodeRow = void (*)(const uint8_t* row_tile, size_t row, size_t k, float* out);

constexpr std::array<float, 256> values_of(const formats::Element& element) {
  std::array<float, 256> values = {};
  for (int code = 0; code < element.codes(); ++code) values[static_cast<size_t>(code)] = element.value(code);
  return values;
}

// 2^(byte - 127); byte 0 is a subnormal.
float scale_of(uint8_t byte) {
  if (byte == formats::kNaNScale) return std::numeric_limits<float>::quiet_NaN();
  return __builtin_bit_cast(float, std::max(static_cast<uint32_t>(byte) << 23, 0x00400000u));
}

template <formats::Element kElement>
void decode_mx(const uint8_t* row_tile, size_t row, size_t k, float* out) {
  static constexpr std::array<float, 256> kValues = values_of(kElement);
  constexpr size_t kCodeBytes = formats::code_bytes(kElement.bits);
  const uint8_t* scale = row_tile + (k + kBlock - 1) / kBlock * kCodeBytes + row;
  for (size_t begin = 0; begin < k; begin += kBlock, row_tile += kCodeBytes, scale += kTileRows) {
    uint8_t codes[kBlock];
    formats::row_codes<kElement.bits>(row_tile, static_cast<int>(row), codes);
    const float factor = scale_of(*scale);
    for (size_t i = 0; i < std::min(kBlock, k - begin); ++i) out[begin + i] = kValues[codes[i]] * factor;
  }
}

void decode_half(const uint8_t* row_tile, size_t row, size_t k, float* out) {
  for (size_t i = 0; i < k; ++i) {
    uint16_t half;
    std::memcpy(&half, row_tile + (i * kTileRows + row) * sizeof half, sizeof half);
    out[i] = formats::half_to_float(half);
  }
}

template <size_t kFormat>
constexpr DecodeRow decoder_of() {
  constexpr const formats::WeightFormatFacts& kFacts = formats::kWeightFormats[kFormat];
  if constexpr (kFacts.mx()) {
    return decode_mx<kFacts.element>;
  } else {
    return decode_half;
  }
}

template <size_t... kFormat>
constexpr std::array<DecodeRow, sizeof...(kFormat)> decoders(std::index_sequence<kFormat...>) {
  return {decoder_of<kFormat>()...};
}

}  // namespace

void decode_row(WeightFormat format, const uint8_t* row_tile, size_t row, size_t k, float* out) {
  static constexpr auto kDecoders = decoders(std::make_index_sequence<formats::kWeightFormatCount>{});
  kDecoders[static_cast<size_t>(format)](row_tile, row, k, out);
}

}  // namespace mxspec
