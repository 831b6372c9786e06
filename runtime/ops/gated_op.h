#pragma once

#include "runtime/ops/kernels/gated.h"
#include "runtime/ops/op.h"

namespace mxspec {

// SwiGLU(x float32[..., 2n]) -> float32[..., n]: silu(gate) * up, where a row of x is its gate, then its up, as the
// fused product of gate_proj and up_proj leaves it. GeGLU: gelu(gate) * up, with the tanh form of GELU.
class GatedUnit {
 public:
  static constexpr Parameter kInputs[] = {{"x", ElementType::kFloat32}};
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  explicit GatedUnit(GateActivation activation);
  void compute(Context& context) const;

 private:
  GateFunction gate_;
};

class SwiGluOp : public GatedUnit {
 public:
  static constexpr const char* kName = "SwiGLU";
  explicit SwiGluOp(const Attributes&) : GatedUnit(GateActivation::kSilu) {}
};

class GeGluOp : public GatedUnit {
 public:
  static constexpr const char* kName = "GeGLU";
  explicit GeGluOp(const Attributes&) : GatedUnit(GateActivation::kGeluTanh) {}
};

}  // namespace mxspec
