// Gated linear units (Shazeer, "GLU Variants Improve Transformer"): an activated gate times what it lets through.
#pragma once

#include <cstddef>

#include "formats/native/isa.h"

namespace mxspec {

enum class GateActivation {
  kSilu,      // x / (1 + e^-x)
  kGeluTanh,  // x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
};

// out[i] = activation(gate[i]) * up[i]. Fixed operations, one value at a time: the same bits on every instruction set,
// wherever the values are cut. NaN and what is not finite come out as in transformers.
using GateFunction = void (*)(const float* gate, const float* up, size_t count, float* out);

GateFunction gate_function(GateActivation activation, Isa isa);

}  // namespace mxspec
