#pragma once

#include "runtime/ops/kernels/experts.h"
#include "runtime/ops/next_matrix.h"
#include "runtime/ops/op.h"

namespace mxspec {

// PackedExperts(x float32[..., K], chosen int64[..., top_k], weights float32[..., top_k], gate_up uint8[tiles, bytes],
// down uint8[tiles, bytes], gate_up_bias float32[E, 2 I]?, down_bias float32[E, N]?) -> float32[..., N]:
// the feed-forward of a mixture of E experts. Row t is the sum over rank r, in this order, of
//   weights[t, r] * (down_e(gate(gate_up_e(x_t) + gate_up_bias_e)) + down_bias_e) with e = chosen[t, r]
// (kernels/experts.h says which operations these are, to the bit). An expert may be chosen twice for a row.
// gate_up: one packed matrix of E * 2 I rows and K columns, of each expert its I rows of the gate, then its I rows of
// up; with alternating = 1 (0 is the default), each row of the gate is followed by one of up. down: one of E * N rows
// and I columns. Only the tiles of chosen experts are read. Attributes K, N, experts (E), inner (I): int, with 2 I and
// N multiples of 16; format and down_format: names of formats::kWeightFormats; activations and down_activations:
// "int16" (the default) or "int8", as of PackedMatMul; activation: "silu", "gelu_tanh" or "clamped_swiglu", the last
// with alpha (1.702) and limit (7.0): float.
class PackedExpertsOp {
 public:
  static constexpr const char* kName = "PackedExperts";
  static constexpr Parameter kInputs[] = {{"x", ElementType::kFloat32},
                                          {"chosen", ElementType::kInt64},
                                          {"weights", ElementType::kFloat32},
                                          {"gate_up", ElementType::kUint8},
                                          {"down", ElementType::kUint8},
                                          {"gate_up_bias", ElementType::kFloat32, true},
                                          {"down_bias", ElementType::kFloat32, true}};
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  explicit PackedExpertsOp(const Attributes& attributes);
  void compute(Context& context) const;

 private:
  int64_t k_, n_, experts_, inner_;
  ExpertsKind kind_;
  Isa isa_;
  NextMatrix next_;
};

}  // namespace mxspec
