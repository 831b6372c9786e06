#include "runtime/ops/attention/attention_op.h"

#include "runtime/ops/attention/attention_inputs.h"
#include "runtime/ops/checks.h"

namespace mxspec {

CausalAttention::CausalAttention(const Attributes& attributes)
    : AttentionBase(attributes), window_(attributes.integer("window", 0)) {
  if (window_ < 0) {
    throw OpError("attribute window: got " + std::to_string(window_) + ", expected 0 (none) or more");
  }
}

void CausalAttention::compute(Context& context) const {
  const Inputs in = {context.input(0),          context.input(1),          context.input(2),          context.input(3),
                     context.input(4),          context.input(5),          context.input(6),          context.input(7),
                     context.optional_input(8), context.optional_input(9), context.optional_input(10)};
  attend_and_append(context, in, in.query.shape);
}

void CausalAttention::attend_and_append(Context& context, const Inputs& in, const Shape& output_shape) const {
  const Shape &query = in.query.shape, &cache = in.past_key.shape;
  check_query(in.query, cache[1]);
  check_cache(in.past_key, in.past_value, query[3]);
  const int64_t tokens = query[1], heads = query[2];
  check_new_entries(in.key, in.value, tokens, cache[1], query[3]);
  check_per_head("alibi_slopes", in.slopes, heads);
  check_per_head("sinks", in.sinks, heads);
  check_distance_bias(in.distance_bias, heads);
  std::vector<AttentionSequence> sequences = read_sequences(in.new_lengths, tokens);
  read_slots(in.slots, cache[0], sequences);
  read_past(in.past_lengths, cache[2], window_, sequences);
  const Tensor output = context.output(0, ElementType::kFloat32, output_shape);
  check_in_place(context, 1, "key", in.past_key);
  check_in_place(context, 2, "value", in.past_value);
  attend({.mode = AttentionMode::kCausal,
          .sequences = sequences,
          .query = in.query,
          .past_key = in.past_key,
          .past_value = in.past_value,
          .key = in.key,
          .value = in.value,
          .slopes = in.slopes,
          .sinks = in.sinks,
          .distance_bias = in.distance_bias,
          .window = window_},
         output);
}

}  // namespace mxspec
