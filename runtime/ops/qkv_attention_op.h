#pragma once

#include "runtime/ops/attention_op.h"

namespace mxspec {

// QkvAttention(qkv float32[batch, seq, (heads + 2 kv_heads) * head_size],
//              past_key, past_value (float16|float32)[batch, kv_heads, capacity, head_size],
//              past_lengths, new_lengths int32[batch], cos, sin float32[batch, seq, rotary]?)
//   -> (output float32[batch, seq, heads * head_size], present_key, present_value like past_key)
// Attention (attention_op.h) over a fused product: a row holds its queries, then its keys, then its values. Where cos
// and sin are given, queries and keys are rotated first, as by RotaryEmbedding. Gives the bits that the separate
// operators give. The attributes are those of Attention.
class QkvAttentionBase : public AttentionBase {
 public:
  static constexpr const char* kName = "QkvAttention";

  using AttentionBase::AttentionBase;
  void compute(Context& context) const;
};

template <ElementType kCache>
class QkvAttentionOp : public QkvAttentionBase {
 public:
  static constexpr Parameter kInputs[] = {
      {"qkv", ElementType::kFloat32},
      {"past_key", kCache},
      {"past_value", kCache},
      {"past_lengths", ElementType::kInt32},
      {"new_lengths", ElementType::kInt32},
      {"cos", ElementType::kFloat32, true},
      {"sin", ElementType::kFloat32, true},
  };
  static constexpr Parameter kOutputs[] = {
      {"output", ElementType::kFloat32}, {"present_key", kCache}, {"present_value", kCache}};

  using QkvAttentionBase::QkvAttentionBase;
};

}  // namespace mxspec
