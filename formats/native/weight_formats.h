// The weight formats by their number, for both libraries; formats/weight_format.py has the same table.
#pragma once

#include <iterator>
#include <string>

#include "formats/native/layout.h"

namespace mxspec::formats {

struct WeightFormatFacts {
  const char* name;
  const Element* element;   // nullptr: float16 values
  const char* activations;  // what a product can make of its rows; float16 takes them as they are

  constexpr int tile_code_bytes() const { return element ? code_bytes(element->bits) : kHalfTileBytes; }
  constexpr int tile_scale_bytes() const { return element ? kTileRows : 0; }
};

inline constexpr WeightFormatFacts kWeightFormats[] = {
    {"fp16_tiles", nullptr, ""},
    {"mxfp6_e3m2", &kElements[0], "int16"},
    {"mxfp6_e2m3", &kElements[1], "int16 int8"},
    {"mxfp4_e2m1", &kElements[2], "int16 int8"},
    {"mxint8", &kElements[3], "int16 int8"},
};
inline constexpr int kWeightFormatCount = static_cast<int>(std::size(kWeightFormats));

// A line a format: number, name, bits, bytes of a tile's codes and of its scales, activations.
[[maybe_unused]] static std::string weight_formats_text() {
  std::string text;
  for (int id = 0; id < kWeightFormatCount; ++id) {
    const WeightFormatFacts& facts = kWeightFormats[id];
    text.append(std::to_string(id)).append(" ").append(facts.name);
    for (const int number :
         {facts.element ? facts.element->bits : 16, facts.tile_code_bytes(), facts.tile_scale_bytes()})
      text.append(" ").append(std::to_string(number));
    text.append(*facts.activations ? " " : "").append(facts.activations).append("\n");
  }
  return text;
}

}  // namespace mxspec::formats
