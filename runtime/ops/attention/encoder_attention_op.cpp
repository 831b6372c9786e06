#include "runtime/ops/attention/encoder_attention_op.h"

#include "runtime/ops/attention/attention_inputs.h"
#include "runtime/ops/checks.h"
#include "runtime/ops/scratch.h"

namespace mxspec {

void EncoderAttentionOp::compute(Context& context) const {
  const Tensor query = context.input(0), key = context.input(1), value = context.input(2);
  const std::optional<Tensor> distance_bias = context.optional_input(4);
  if (key.shape.rank() != 4) throw_shape("key", key.shape, "[1, tokens, kv_heads, head_size]");
  const int64_t kv_heads = key.shape[2];
  check_query(query, kv_heads);
  const int64_t tokens = query.shape[1], head_size = query.shape[3];
  check_new_entries(key, value, tokens, kv_heads, head_size);
  check_distance_bias(distance_bias, query.shape[2]);
  const std::vector<AttentionSequence> sequences = read_sequences(context.input(3), tokens);

  // Each head's keys side by side, as in a cache: the kernel is the same.
  const Shape packed = {1, kv_heads, tokens, head_size};
  float* const keys = reinterpret_cast<float*>(scratch(2 * static_cast<size_t>(packed.size()) * sizeof(float)));
  attend({.mode = AttentionMode::kOwn,
          .sequences = sequences,
          .query = query,
          .past_key = {ElementType::kFloat32, packed, keys},
          .past_value = {ElementType::kFloat32, packed, keys + packed.size()},
          .key = key,
          .value = value,
          .distance_bias = distance_bias},
         context.output(0, ElementType::kFloat32, query.shape));
}

}  // namespace mxspec
