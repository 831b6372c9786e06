#pragma once

#include "runtime/ops/attention/attention_base.h"

namespace mxspec {

// EncoderAttention(query float32[1, tokens, heads, head_size], key, value float32[1, tokens, kv_heads, head_size],
//                  new_lengths int32[sequences], distance_bias float32[heads, distances]?)
//   -> (output like query)
// The tokens of all sequences follow one another, new_lengths of each; each sees all tokens of its own sequence.
// Nothing is cached. Positions count from a sequence's first token. Attributes: those of attention_base.h.
class EncoderAttentionOp : public AttentionBase {
 public:
  static constexpr const char* kName = "EncoderAttention";
  static constexpr Parameter kInputs[] = {
      {"query", ElementType::kFloat32},
      {"key", ElementType::kFloat32},
      {"value", ElementType::kFloat32},
      {"new_lengths", ElementType::kInt32},
      {"distance_bias", ElementType::kFloat32, true},
  };
  static constexpr Parameter kOutputs[] = {{"output", ElementType::kFloat32}};

  using AttentionBase::AttentionBase;
  void compute(Context& context) const;
};

}  // namespace mxspec
