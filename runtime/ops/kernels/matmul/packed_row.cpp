#include "runtime/ops/kernels/matmul/packed_row.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "formats/native/half.h"

namespace mxspec {
namespace {

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

template <const formats::Element& kElement>
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

}  // namespace

void decode_row(WeightFormat format, const uint8_t* row_tile, size_t row, size_t k, float* out) {
  switch (format) {
    case WeightFormat::kFp16Tiles:
      return decode_half(row_tile, row, k, out);
    case WeightFormat::kMxfp6E3m2:
      return decode_mx<formats::kE3M2>(row_tile, row, k, out);
    case WeightFormat::kMxfp6E2m3:
      return decode_mx<formats::kE2M3>(row_tile, row, k, out);
    case WeightFormat::kMxfp4E2m1:
      return decode_mx<formats::kE2M1>(row_tile, row, k, out);
    case WeightFormat::kMxint8:
      return decode_mx<formats::kInt8>(row_tile, row, k, out);
  }
}

}  // namespace mxspec
