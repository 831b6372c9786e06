#pragma once

#include "runtime/ops/op.h"

namespace mxspec {

// Attention(query float32[batch, seq, heads, head_size], key, value float32[batch, seq, kv_heads, head_size],
//           past_key, past_value (float16|float32)[batch, kv_heads, capacity, head_size],
//           past_lengths, new_lengths int32[batch], alibi_slopes float32[heads]?)
//   -> (output like query, present_key, present_value like past_key)
// Appends keys and values at past_lengths and attends causally. Where a present output is bound to the buffer of its
// past it is written in place, else the past is copied first. Rows at or beyond new_lengths are padding: zeros out,
// nothing cached. Attributes: scale (required), softcap (0 = none), window (0 = none).
//
// ONNX Runtime infers the type of an output from at most one input of free type, so there is one class a cache type
// under the same name, and it picks the one that fits the node.
class AttentionBase {
 public:
  static constexpr const char* kName = "Attention";

  explicit AttentionBase(const Attributes& attributes);
  void compute(Context& context) const;

 protected:
  struct Inputs {
    Tensor query, key, value, past_key, past_value, past_lengths, new_lengths;
    std::optional<Tensor> slopes;
  };
  // Checks the inputs and computes the outputs; output_shape has the query's values in its order.
  void attend(Context& context, const Inputs& inputs, const Shape& output_shape) const;

 private:
  static void check_shapes(const Inputs& in);
  static void check_lengths(const Inputs& in);

  float scale_;
  float softcap_;
  int64_t window_;
};

template <ElementType kCache>
class AttentionOp : public AttentionBase {
 public:
  static constexpr Parameter kInputs[] = {
      {"query", ElementType::kFloat32},
      {"key", ElementType::kFloat32},
      {"value", ElementType::kFloat32},
      {"past_key", kCache},
      {"past_value", kCache},
      {"past_lengths", ElementType::kInt32},
      {"new_lengths", ElementType::kInt32},
      {"alibi_slopes", ElementType::kFloat32, true},
  };
  static constexpr Parameter kOutputs[] = {
      {"output", ElementType::kFloat32}, {"present_key", kCache}, {"present_value", kCache}};

  using AttentionBase::AttentionBase;
};

}  // namespace mxspec
