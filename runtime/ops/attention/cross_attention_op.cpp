#include "runtime/ops/attention/cross_attention_op.h"

#include "runtime/ops/attention/attention_inputs.h"

namespace mxspec {

void CrossAttention::compute(Context& context) const {
  const Tensor query = context.input(0), past_key = context.input(1), past_value = context.input(2);
  check_query(query, past_key.shape[1]);
  check_cache(past_key, past_value, query.shape[3]);
  std::vector<AttentionSequence> sequences = read_sequences(context.input(5), query.shape[1]);
  read_slots(context.input(3), past_key.shape[0], sequences);
  read_encoder_lengths(context.input(4), past_key.shape[2], sequences);
  attend({.mode = AttentionMode::kStored,
          .sequences = sequences,
          .query = query,
          .past_key = past_key,
          .past_value = past_value},
         context.output(0, ElementType::kFloat32, query.shape));
}

}  // namespace mxspec
