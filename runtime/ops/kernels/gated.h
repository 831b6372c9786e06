// Gated linear units (Shazeer, "GLU Variants Improve Transformer"): an activated gate times what it lets through.
#pragma once

#include <cstddef>

#include "formats/native/isa.h"

namespace mxspec {

enum class GateActivation {
  kSilu,           // x / (1 + e^-x), times up
  kGeluTanh,       // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), times up
  kClampedSwiGlu,  // gpt-oss's: x / (1 + e^(-alpha x)) of x = min(gate, limit), times min(max(up, -limit), limit) + 1
};

// Of kClampedSwiGlu only.
struct GateConstants {
  float alpha = 1.702f, limit = 7.0f;
};

// out[i] from gate[i] and up[i]; out may be gate. Fixed operations, one value at a time: the same bits on every
// instruction set, wherever the values are cut. NaN and what is not finite come out as in transformers.
using GateFunction = void (*)(const float* gate, const float* up, size_t count, const GateConstants& constants,
                              float* out);

GateFunction gate_function(GateActivation activation, Isa isa);

}  // namespace mxspec
