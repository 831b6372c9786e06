// The weight formats, a row each: what both libraries know of a format comes from here. formats/weight_format.py has
// the same table.
#pragma once

#include <iterator>
#include <string>

#include "formats/native/layout.h"

namespace mxspec::formats {

// An element: sign, exponent, mantissa in the low bits of a code. INT8 is an integer of two's complement in units of
// 2^-6: seven bits of mantissa that are all subnormal.
struct Element {
  int bits;
  int mantissa_bits;
  int bias;
  int largest_exponent;  // of the largest code: OCP MX v1.0, table 1 (emax)

  constexpr bool is_integer() const { return bits == 8; }
  // Every value is an integer times 2^this: a subnormal's step.
  constexpr int step_exponent() const { return 1 - bias - mantissa_bits; }
  constexpr int codes() const { return 1 << bits; }
  constexpr int sign() const { return 1 << (bits - 1); }
  constexpr int largest_code() const { return sign() - 1; }  // without the sign
  // The value of a code in steps.
  constexpr int steps(int code) const {
    if (is_integer()) return code < 128 ? code : code - 256;
    const int magnitude = code & largest_code(), hidden = 1 << mantissa_bits;
    const int binade = magnitude >> mantissa_bits, mantissa = magnitude & (hidden - 1);
    const int steps = binade == 0 ? mantissa : (hidden | mantissa) << (binade - 1);
    return code & sign() ? -steps : steps;
  }
  // The value of a code, exact; that of a zero with its sign set is -0.
  constexpr float value(int code) const {
    if (!is_integer() && code == sign()) return -0.0f;
    const auto exponent = static_cast<uint32_t>(127 + step_exponent());
    return static_cast<float>(steps(code)) * __builtin_bit_cast(float, exponent << 23);
  }
};
inline constexpr int kNaNScale = 255;

enum class WeightFormat : int { kFp16Tiles, kMxfp6E3m2, kMxfp6E2m3, kMxfp4E2m1, kMxint8 };

struct WeightFormatFacts {
  WeightFormat format;
  const char* name;
  Element element;

  constexpr bool mx() const { return element.bits != 16; }
  // Rows of int8 need weights that fit a byte.
  constexpr bool takes_int8() const { return mx() && element.steps(element.largest_code()) <= 127; }
  // What a product can make of its rows; float16 takes them as they are.
  constexpr const char* activations() const { return !mx() ? "" : takes_int8() ? "int16 int8" : "int16"; }
  constexpr int tile_code_bytes() const { return code_bytes(element.bits); }
  constexpr int tile_scale_bytes() const { return mx() ? kTileRows : 0; }
};

// By their number.
inline constexpr WeightFormatFacts kWeightFormats[] = {
    {WeightFormat::kFp16Tiles, "fp16_tiles", {16, 10, 15, 15}},
    {WeightFormat::kMxfp6E3m2, "mxfp6_e3m2", {6, 2, 3, 4}},
    {WeightFormat::kMxfp6E2m3, "mxfp6_e2m3", {6, 3, 1, 2}},
    {WeightFormat::kMxfp4E2m1, "mxfp4_e2m1", {4, 1, 1, 2}},
    {WeightFormat::kMxint8, "mxint8", {8, 7, 0, 0}},
};
inline constexpr int kWeightFormatCount = static_cast<int>(std::size(kWeightFormats));

constexpr const WeightFormatFacts& facts_of(WeightFormat format) { return kWeightFormats[static_cast<int>(format)]; }

// The elements of the MX formats, as the codec's interface numbers them: fp16_tiles has none.
inline constexpr int kElementCount = kWeightFormatCount - 1;
constexpr int element_number(WeightFormat format) { return static_cast<int>(format) - 1; }
constexpr const Element& element_of(int number) { return kWeightFormats[number + 1].element; }

// What the code that asks the table takes for granted.
constexpr bool is_sound(int number) {
  const WeightFormatFacts& facts = kWeightFormats[number];
  const Element& element = facts.element;
  const int bits = element.bits, largest_binade = element.largest_code() >> element.mantissa_bits;
  if (facts.format != static_cast<WeightFormat>(number)) return false;
  if (number == 0) return !facts.mx();                          // alone: the elements are numbered without it
  const bool has_layout = bits == 4 || bits == 6 || bits == 8;  // layout.h and the kernels take the last for all others
  return has_layout && largest_binade - element.bias == element.largest_exponent;
}
static_assert([] {
  for (int number = 0; number < kWeightFormatCount; ++number)
    if (!is_sound(number)) return false;
  return true;
}());
constexpr int steps_of(WeightFormat format, int code) { return facts_of(format).element.steps(code); }
constexpr float value_of(WeightFormat format, int code) { return facts_of(format).element.value(code); }
static_assert(steps_of(WeightFormat::kMxfp6E3m2, 31) == 448 && value_of(WeightFormat::kMxfp6E3m2, 31) == 28);
static_assert(steps_of(WeightFormat::kMxfp6E2m3, 63) == -60 && value_of(WeightFormat::kMxfp6E2m3, 63) == -7.5f);
static_assert(steps_of(WeightFormat::kMxfp4E2m1, 7) == 12 && value_of(WeightFormat::kMxfp4E2m1, 7) == 6);
static_assert(steps_of(WeightFormat::kMxint8, 0x81) == -127 && value_of(WeightFormat::kMxint8, 0x80) == -2);

// A line a format: number, name, bits, bytes of a tile's codes and of its scales, activations.
[[maybe_unused]] static std::string weight_formats_text() {
  std::string text;
  for (const WeightFormatFacts& facts : kWeightFormats) {
    text.append(std::to_string(static_cast<int>(facts.format))).append(" ").append(facts.name);
    for (const int number : {facts.element.bits, facts.tile_code_bytes(), facts.tile_scale_bytes()})
      text.append(" ").append(std::to_string(number));
    text.append(*facts.activations() ? " " : "").append(facts.activations()).append("\n");
  }
  return text;
}

}  // namespace mxspec::formats
