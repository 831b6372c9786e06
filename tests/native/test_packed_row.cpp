// Rows of packed matrices against the values that their codes stand for, from buffers without a byte to spare.
#include <bit>
#include <cmath>

#include "runtime/ops/kernels/matmul/packed_row.h"
#include "tests/native/check.h"
#include "tests/native/matmul_case.h"

namespace mxspec {
namespace {

std::vector<float> decode(const MatmulShape& shape, WeightFormat format, const std::vector<uint8_t>& packed,
                          size_t row) {
  std::vector<float> out(shape.k);
  decode_row(format, packed.data() + row / kTileRows * shape.row_tile_bytes(format), row % kTileRows, shape.k,
             out.data());
  return out;
}

void check_values(const MatmulShape& shape, WeightFormat format, std::mt19937& random) {
  const test::Weights weights = test::random_weights(shape, format, random);
  for (size_t row = 0; row < shape.n; ++row) {
    const std::vector<float> out = decode(shape, format, weights.packed, row);
    for (size_t i = 0; i < shape.k; ++i) {
      const auto expected = static_cast<float>(weights.values[row * shape.k + i]);
      CHECK(out[i] == expected) << test::text_of(shape, {format}, Isa::kScalar) << "row" << row << "at" << i;
    }
  }
}

// Every code under every scale: subnormal results are rounded once, the largest overflow, scale 255 is NaN.
void check_scales(WeightFormat format) {
  const int bits = MatmulKind{format}.facts().element.bits;
  const MatmulShape shape{0, 16, static_cast<size_t>(std::max(32, 1 << bits))};
  std::vector<uint8_t> packed(shape.row_tile_bytes(format));
  const auto code_bytes = static_cast<size_t>(formats::code_bytes(bits));
  for (unsigned code = 0; code < shape.k; ++code) {
    test::put_code(packed.data() + code / 32 * code_bytes, bits, 5, code % 32, code % (1u << bits));
  }
  for (unsigned scale = 0; scale < 256; ++scale) {
    for (size_t block = 0; block < shape.k_blocks(); ++block) {
      packed[shape.k_blocks() * code_bytes + block * 16 + 5] = static_cast<uint8_t>(scale);
    }
    const std::vector<float> out = decode(shape, format, packed, 5);
    for (unsigned code = 0; code < shape.k; ++code) {
      const double value = test::code_value(format, code % (1u << bits));
      const auto expected = static_cast<float>(std::ldexp(value, static_cast<int>(scale) - 127));
      CHECK(scale == 255 ? std::isnan(out[code]) : out[code] == expected) << "scale" << scale << "code" << code;
    }
  }
}

void check_halves() {
  const MatmulShape shape{0, 16, 1 << 16};
  std::vector<uint8_t> packed(shape.row_tile_bytes(WeightFormat::kFp16Tiles));
  for (unsigned half = 0; half < shape.k; ++half) {
    packed[(half * 16 + 9) * 2] = static_cast<uint8_t>(half);
    packed[(half * 16 + 9) * 2 + 1] = static_cast<uint8_t>(half >> 8);
  }
  const std::vector<float> out = decode(shape, WeightFormat::kFp16Tiles, packed, 9);
  for (unsigned half = 0; half < shape.k; ++half) {
    if ((half >> 10 & 31) == 31) continue;  // infinity and NaN: no bundle holds them
    const auto bits = static_cast<uint16_t>(half);
    CHECK(out[half] == static_cast<float>(test::half_value(bits)) && std::signbit(out[half]) == (half >> 15 != 0))
        << "half" << half;
  }
}

}  // namespace
}  // namespace mxspec

int main() {
  std::mt19937 random(1);
  for (const mxspec::formats::WeightFormatFacts& facts : mxspec::formats::kWeightFormats) {
    for (size_t n : {1, 15, 16, 33}) {
      for (size_t k : {1, 31, 32, 33, 96, 130}) mxspec::check_values({0, n, k}, facts.format, random);
    }
    if (facts.mx()) mxspec::check_scales(facts.format);
  }
  mxspec::check_halves();
  return mxspec::test::check_result();
}
