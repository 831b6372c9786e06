// The tables of the MX elements, made from the table of the weight formats.
#include <array>

#include "runtime/ops/kernels/matmul/matmul_kernels.h"

namespace mxspec {
namespace {

constexpr int kOffset = 64;       // of tables of bytes: E2M3 becomes 4 to 124, and twice 124 * 127 fits int16
constexpr int kOffsetInt8 = 128;  // 1 to 255
static_assert(2 * 124 * 127 < 32768);

constexpr WeightElement make_element(const formats::Element& element) {
  WeightElement out = {};
  out.bits = element.bits;
  out.unit_exponent = -element.step_exponent();
  out.offset = element.is_integer() ? kOffsetInt8 : kOffset;
  if (element.is_integer()) return out;
  for (int i = 0; i < 64; ++i) {
    const int value = element.steps(i % element.codes());
    out.table[i] = static_cast<int16_t>(value);
    out.bytes[i] = static_cast<int8_t>(value);
    out.unsigned_bytes[i] = static_cast<uint8_t>(value + kOffset);
  }
  const int magnitudes = element.largest_code() + 1;
  while (magnitudes == 32 && element.steps(31) >> out.high_shift > 127) ++out.high_shift;
  for (int i = 0; i < 16; ++i) {
    out.low[i] = static_cast<uint8_t>(element.steps(i % magnitudes));
    out.high[i] = static_cast<uint8_t>(magnitudes == 32 ? element.steps(16 + i) >> out.high_shift : 0);
  }
  return out;
}

// Whether the tables hold all values, which the kernels take for granted.
constexpr bool holds(const WeightElement& tables, const formats::WeightFormatFacts& facts) {
  const formats::Element& element = facts.element;
  if (element.is_integer()) return true;
  for (int i = 0; i < 16; ++i) {
    const bool six = element.bits == 6;
    if (six && (tables.low[i] != element.steps(i) || tables.low[i] > 127)) return false;
    if (six && tables.high[i] << tables.high_shift != element.steps(16 + i)) return false;
    // matmul_avx2_weights.h takes small codes as they are.
    if (six && facts.takes_int8() && (tables.low[i] != i || tables.high_shift != 0)) return false;
  }
  for (int i = 0; i < 64; ++i) {
    const int value = element.steps(i % element.codes());
    if (tables.table[i] != value) return false;
    if (facts.takes_int8() && (tables.bytes[i] != value || tables.unsigned_bytes[i] != value + kOffset)) return false;
    if (facts.takes_int8() && value + kOffset > 124) return false;
  }
  return true;
}

constexpr std::array<WeightElement, formats::kWeightFormatCount> kElements = [] {
  std::array<WeightElement, formats::kWeightFormatCount> elements = {};
  for (const formats::WeightFormatFacts& facts : formats::kWeightFormats)
    if (facts.mx()) elements[static_cast<size_t>(facts.format)] = make_element(facts.element);
  return elements;
}();
static_assert([] {
  for (const formats::WeightFormatFacts& facts : formats::kWeightFormats)
    if (facts.mx() && !holds(kElements[static_cast<size_t>(facts.format)], facts)) return false;
  return true;
}());

}  // namespace

const WeightElement& weight_element(WeightFormat format) { return kElements[static_cast<size_t>(format)]; }

}  // namespace mxspec
