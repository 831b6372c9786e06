#pragma once

#include "runtime/ops/attention/attention_op.h"
#include "runtime/ops/kernels/norm.h"

namespace mxspec {

// QkvAttention(qkv float32[1, tokens, (heads + 2 kv_heads) * head_size],
//              past_key, past_value (float16|float32)[slots, kv_heads, capacity, head_size],
//              slots, past_lengths, new_lengths int32[sequences], cos, sin float32[1, tokens, rotary / 2]?,
//              query_norm_weight, key_norm_weight float32[norm]?, alibi_slopes, sinks float32[heads]?,
//              distance_bias float32[heads, distances]?)
//   -> (output float32[1, tokens, heads * head_size], present_key, present_value: the buffers of past_key, past_value)
// Attention (attention_op.h) over a fused product. A row of qkv holds its queries, then its keys, then its values:
//   q0 q1 q2 q3 k0 k1 v0 v1     heads = 4, kv_heads = 2
// or, with the attribute interleaved = 1, the queries of a key-value head, its key and its value (GPT-NeoX):
//   q0 q1 k0 v0 q2 q3 k1 v1
// Queries and keys with a norm weight take their root-mean-square norm first, of each head where the weight is a head
// long (Qwen3, Gemma 3), of all heads together where it is that long (OLMo 2, not interleaved); attribute norm_epsilon.
// Where cos and sin are given, they are then rotated as by RotaryEmbedding (attribute pairs). Gives the bits that the
// separate operators (the norm without its addition) give. The other attributes are those of Attention.
class QkvAttentionBase : public CausalAttention {
 public:
  static constexpr const char* kName = "QkvAttention";

  explicit QkvAttentionBase(const Attributes& attributes);
  void compute(Context& context) const;

 private:
  float norm_epsilon_;
  bool interleaved_, pairs_;
  NormFunction norm_row_;
};

template <ElementType kCache>
class QkvAttentionOp : public QkvAttentionBase {
 public:
  static constexpr Parameter kInputs[] = {
      {"qkv", ElementType::kFloat32},
      {"past_key", kCache},
      {"past_value", kCache},
      {"slots", ElementType::kInt32},
      {"past_lengths", ElementType::kInt32},
      {"new_lengths", ElementType::kInt32},
      {"cos", ElementType::kFloat32, true},
      {"sin", ElementType::kFloat32, true},
      {"query_norm_weight", ElementType::kFloat32, true},
      {"key_norm_weight", ElementType::kFloat32, true},
      {"alibi_slopes", ElementType::kFloat32, true},
      {"sinks", ElementType::kFloat32, true},
      {"distance_bias", ElementType::kFloat32, true},
  };
  static constexpr Parameter kOutputs[] = {
      {"output", ElementType::kFloat32}, {"present_key", kCache}, {"present_value", kCache}};

  using QkvAttentionBase::QkvAttentionBase;
};

}  // namespace mxspec
