#pragma once

#include "runtime/ops/attention/attention_base.h"

namespace mxspec {

// Attention(query float32[1, tokens, heads, head_size], key, value float32[1, tokens, kv_heads, head_size],
//           past_key, past_value (float16|float32)[slots, kv_heads, capacity, head_size],
//           slots, past_lengths, new_lengths int32[sequences], alibi_slopes, sinks float32[heads]?,
//           distance_bias float32[heads, distances]?)
//   -> (output like query, present_key, present_value like past_key, in the very buffers of past_key and past_value)
// The tokens of all sequences follow one another: three of the sequence in slot 4, then one of that in slot 0:
//   tokens: a b c d     slots = [4, 0]     past_lengths = [7, 2]     new_lengths = [3, 1]
// Appends their keys and values to their slots at past_lengths and attends causally, each sequence within its slot.
// With a window a cache may hold less than a text: it is a ring, position p at index p % capacity. Its capacity is then
// a multiple of 128, and at least window + new_lengths - 1.
// Refused: a slot out of range or named twice, a sequence without tokens, new_lengths that do not add up to tokens, a
// full cache, and an output of the cache that is not bound to its input's buffer.
// ALiBi: to the score of a key, slope * (key's position - query's position) is added. A sink is a score of its head's
// own beside those of the keys, with no value: it takes a part of the probability (gpt-oss).
// Attributes: those of attention_base.h, window (0 = none).
//
// ONNX Runtime infers the type of an output from at most one input of free type, so there is one class a cache type
// under the same name, and it picks the one that fits the node.
class CausalAttention : public AttentionBase {
 public:
  static constexpr const char* kName = "Attention";

  explicit CausalAttention(const Attributes& attributes);
  void compute(Context& context) const;

 protected:
  struct Inputs {
    Tensor query, key, value, past_key, past_value, slots, past_lengths, new_lengths;
    std::optional<Tensor> slopes, sinks, distance_bias;
  };
  // Checks the inputs and computes the outputs; output_shape has the query's values in its order.
  void attend_and_append(Context& context, const Inputs& inputs, const Shape& output_shape) const;

 private:
  int64_t window_;
};

template <ElementType kCache>
class AttentionOp : public CausalAttention {
 public:
  static constexpr Parameter kInputs[] = {
      {"query", ElementType::kFloat32},
      {"key", ElementType::kFloat32},
      {"value", ElementType::kFloat32},
      {"past_key", kCache},
      {"past_value", kCache},
      {"slots", ElementType::kInt32},
      {"past_lengths", ElementType::kInt32},
      {"new_lengths", ElementType::kInt32},
      {"alibi_slopes", ElementType::kFloat32, true},
      {"sinks", ElementType::kFloat32, true},
      {"distance_bias", ElementType::kFloat32, true},
  };
  static constexpr Parameter kOutputs[] = {
      {"output", ElementType::kFloat32}, {"present_key", kCache}, {"present_value", kCache}};

  using CausalAttention::CausalAttention;
};

}  // namespace mxspec
