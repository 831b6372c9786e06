// The tables of the MX elements, made from formats/native/layout.h.
#include "runtime/ops/kernels/matmul/matmul_kernels.h"

namespace mxspec {
namespace {

constexpr int kOffset = 64;       // of tables of bytes: E2M3 becomes 4 to 124, and twice 124 * 127 fits int16
constexpr int kOffsetInt8 = 128;  // 1 to 255

constexpr WeightElement make_element(const formats::Element& element, int high_shift) {
  WeightElement out = {};
  out.bits = element.bits;
  out.unit_exponent = -element.step_exponent();
  out.high_shift = high_shift;
  out.offset = element.is_integer() ? kOffsetInt8 : kOffset;
  if (element.is_integer()) return out;
  for (int i = 0; i < 64; ++i) {
    const int value = element.steps(i % element.codes());
    out.table[i] = static_cast<int16_t>(value);
    out.bytes[i] = static_cast<int8_t>(value);
    out.unsigned_bytes[i] = static_cast<uint8_t>(value + kOffset);
  }
  for (int i = 0; i < 16; ++i) {
    out.low[i] = static_cast<uint8_t>(element.bits == 6 ? element.steps(i) : element.steps(i & 7));
    out.high[i] = static_cast<uint8_t>(element.bits == 6 ? element.steps(i + 16) >> high_shift : 0);
  }
  return out;
}

constexpr WeightElement kE3m2 = make_element(formats::kE3M2, 3);
constexpr WeightElement kE2m3 = make_element(formats::kE2M3, 0);
constexpr WeightElement kE2m1 = make_element(formats::kE2M1, 0);
constexpr WeightElement kInt8 = make_element(formats::kInt8, 0);
static_assert(kE3m2.table[31] == 448 && kE2m3.unsigned_bytes[63] == 4 && kE2m1.table[63] == -12);
static_assert(2 * 124 * 127 < 32768);
static_assert(kE2m3.low[15] == 15 && kE2m3.high[0] == 16, "matmul_avx2_weights.h takes E2M3's small codes as they are");

}  // namespace

const WeightElement& weight_element(WeightFormat format) {
  switch (format) {
    case WeightFormat::kMxfp6E2m3:
      return kE2m3;
    case WeightFormat::kMxfp4E2m1:
      return kE2m1;
    case WeightFormat::kMxint8:
      return kInt8;
    default:
      return kE3m2;
  }
}

}  // namespace mxspec
