#pragma once

#include "runtime/ops/attention/attention_base.h"

namespace mxspec {

// CrossAttention(query float32[1, tokens, heads, head_size],
//                past_key, past_value (float16|float32)[slots, kv_heads, capacity, head_size],
//                slots, encoder_lengths, new_lengths int32[sequences])
//   -> (output like query)
// The tokens of all sequences follow one another, as in Attention (attention_op.h), each sequence with a slot of
// its own; all of them see the slot's first encoder_lengths entries, which StoreKeyValue wrote. Nothing is written.
// Attributes: scale and softcap (attention_base.h).
class CrossAttention : public AttentionBase {
 public:
  static constexpr const char* kName = "CrossAttention";

  using AttentionBase::AttentionBase;
  void compute(Context& context) const;
};

template <ElementType kCache>  // as of Attention
class CrossAttentionOp : public CrossAttention {
 public:
  static constexpr Parameter kInputs[] = {
      {"query", ElementType::kFloat32},
      {"past_key", kCache},
      {"past_value", kCache},
      {"slots", ElementType::kInt32},
      {"encoder_lengths", ElementType::kInt32},
      {"new_lengths", ElementType::kInt32},
  };
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  using CrossAttention::CrossAttention;
};

}  // namespace mxspec
