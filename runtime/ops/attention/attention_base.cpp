#include "runtime/ops/attention/attention_base.h"

#include <cmath>
#include <limits>

#include "runtime/ops/attention/attention_inputs.h"
#include "runtime/ops/checks.h"

namespace mxspec {
namespace {

constexpr int64_t kFarthest = std::numeric_limits<int32_t>::max();  // no cache is longer

const float* floats_of(const std::optional<Tensor>& tensor) { return tensor ? tensor->as<const float>() : nullptr; }

}  // namespace

AttentionBase::AttentionBase(const Attributes& attributes)
    : scale_(attributes.number("scale")),
      softcap_(attributes.number("softcap", 0)),
      first_distance_(attributes.integer("first_distance", 0)) {
  if (!std::isfinite(scale_)) throw OpError("attribute scale: got " + std::to_string(scale_) + ", expected a number");
  if (!std::isfinite(softcap_) || softcap_ < 0) {
    throw OpError("attribute softcap: got " + std::to_string(softcap_) + ", expected 0 (none) or more");
  }
  if (first_distance_ < -kFarthest || first_distance_ > kFarthest) {
    throw OpError("attribute first_distance: got " + std::to_string(first_distance_) + ", expected at most " +
                  std::to_string(kFarthest) + " from 0");
  }
  usable_isa();
}

void AttentionBase::attend(const Operands& operands, const Tensor& output) const {
  const Shape &query = operands.query.shape, &cache = operands.past_key.shape;
  const AttentionCall call = {
      .mode = operands.mode,
      .sequences = operands.sequences.data(),
      .sequence_count = operands.sequences.size(),
      .heads = static_cast<size_t>(query[2]),
      .kv_heads = static_cast<size_t>(cache[1]),
      .head_size = static_cast<size_t>(query[3]),
      .capacity = static_cast<size_t>(cache[2]),
      .query = operands.query.as<const float>(),
      .key = floats_of(operands.key),
      .value = floats_of(operands.value),
      .kind = kind_of(operands.past_key),
      .key_cache = operands.past_key.data,
      .value_cache = operands.past_value.data,
      .slopes = floats_of(operands.slopes),
      .sinks = floats_of(operands.sinks),
      .distance_bias = floats_of(operands.distance_bias),
      .distances = operands.distance_bias ? static_cast<size_t>(operands.distance_bias->shape[1]) : 0,
      .first_distance = first_distance_,
      .output = output.as<float>(),
      .scale = scale_,
      .softcap = softcap_,
      .window = static_cast<size_t>(operands.window),
  };
  attention(call, chosen_isa().isa, shared_threads());
}

}  // namespace mxspec
