#pragma once

#include "runtime/ops/op.h"

namespace mxspec {

// RotaryEmbedding(x float32[batch, seq, heads, head_size], cos, sin float32[batch, seq, rotary]) -> like x.
// Rotates the first `rotary` entries of each head (rotate-half form); rotary is even and at most head_size.
class RotaryEmbeddingOp {
 public:
  static constexpr const char* kName = "RotaryEmbedding";
  static constexpr Parameter kInputs[] = {
      {"x", ElementType::kFloat32}, {"cos", ElementType::kFloat32}, {"sin", ElementType::kFloat32}};
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  explicit RotaryEmbeddingOp(const Attributes&) {}
  void compute(Context& context) const;
};

// Throws where cos and sin are not the tables of x [batch, seq, heads, head_size].
void check_rotary_tables(const Shape& cos, const Shape& sin, const Shape& x);

}  // namespace mxspec
