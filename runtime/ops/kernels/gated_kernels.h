// What each instruction set's file provides to gated.cpp.
#pragma once

#include "runtime/ops/kernels/gated.h"

namespace mxspec {

struct GateKernels {
  GateFunction silu;
  GateFunction gelu_tanh;
};

extern const GateKernels kGatesScalar;
extern const GateKernels kGatesAvx2;
extern const GateKernels kGatesAvx512;
extern const GateKernels kGatesNeon;

}  // namespace mxspec
