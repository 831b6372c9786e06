#pragma once

#include "runtime/ops/op.h"

namespace mxspec {

// StoreKeyValue(key, value float32[1, tokens, kv_heads, head_size],
//               past_key, past_value (float16|float32)[slots, kv_heads, capacity, head_size],
//               slots, new_lengths int32[sequences])
//   -> (present_key, present_value: the buffers of past_key, past_value)
// Writes the keys and values of each sequence's tokens, which follow one another, to the first entries of its
// slot. Refused, before anything is written: whatever Attention (attention_op.h) refuses, and a value that is infinite
// in float16 where that is the cache's type.
class StoreKeyValue {
 public:
  static constexpr const char* kName = "StoreKeyValue";

  explicit StoreKeyValue(const Attributes& attributes);
  void compute(Context& context) const;
};

template <ElementType kCache>  // as of Attention
class StoreKeyValueOp : public StoreKeyValue {
 public:
  static constexpr Parameter kInputs[] = {
      {"key", ElementType::kFloat32}, {"value", ElementType::kFloat32}, {"past_key", kCache},
      {"past_value", kCache},         {"slots", ElementType::kInt32},   {"new_lengths", ElementType::kInt32},
  };
  static constexpr Parameter kOutputs[] = {{"present_key", kCache}, {"present_value", kCache}};

  using StoreKeyValue::StoreKeyValue;
};

}  // namespace mxspec
