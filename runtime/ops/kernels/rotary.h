// Rotary position embedding of the halves of a head (GPT-NeoX, Llama) or of its pairs (GPT-J, Cohere).
#pragma once

#include <cstddef>

namespace mxspec {

// One token: rotates the first `rotary` entries of each head and copies the rest.
// x, out float[heads, head_size]; cos, sin float[rotary/2], of a pair each. Out may be x. Unfused multiplies and one
// add, as transformers rounds them, so any vector width gives these bits:
//   out[i]            = x[i] * cos[i]            - x[i + rotary/2] * sin[i]      for i < rotary/2
//   out[i + rotary/2] = x[i + rotary/2] * cos[i] + x[i] * sin[i]
// or, of pairs side by side, with the neighbours 2 i and 2 i + 1 in the place of i and i + rotary/2.
void rotate_heads(const float* x, const float* cos, const float* sin, size_t heads, size_t head_size, size_t rotary,
                  bool pairs, float* out);

}  // namespace mxspec
