// The kernels that are written over lanes and bytes (lanes_*.h): one table of them for each instruction set.
#pragma once

#include "formats/native/isa.h"
#include "runtime/ops/kernels/attention/attention_kernels.h"
#include "runtime/ops/kernels/gated.h"
#include "runtime/ops/kernels/norm.h"
#include "runtime/ops/kernels/weighted_sum.h"

namespace mxspec {

struct LaneKernels {
  AttentionKernels attention;
  struct {
    GateFunction silu, gelu_tanh, clamped_swiglu;
  } gates;
  struct {
    NormFunction rms, layer;
  } norms;
  WeightedSum weighted_sum;
};

// The table of an available instruction set.
const LaneKernels& lane_kernels(Isa isa);

}  // namespace mxspec
