#pragma once

#include "runtime/ops/op.h"

namespace mxspec {

// RotaryEmbedding(x float32[batch, seq, heads, head_size], cos, sin float32[batch, seq, rotary / 2]) -> like x.
// Rotates the first `rotary` entries of each head, at most all of it. Entry i turns with entry i + rotary / 2 or, with
// the attribute pairs = 1, each even entry with the next; column i of cos and sin is of the pair i.
class RotaryEmbeddingOp {
 public:
  static constexpr const char* kName = "RotaryEmbedding";
  static constexpr Parameter kInputs[] = {
      {"x", ElementType::kFloat32}, {"cos", ElementType::kFloat32}, {"sin", ElementType::kFloat32}};
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  explicit RotaryEmbeddingOp(const Attributes& attributes);
  void compute(Context& context) const;

 private:
  bool pairs_;
};

// The attribute of that name, 0 (the default) or 1.
bool read_switch(const Attributes& attributes, const char* name);

// Throws where cos and sin are not rows of tables for x [batch, seq, heads, head_size].
void check_rotary_tables(const Shape& cos, const Shape& sin, const Shape& x);

}  // namespace mxspec
