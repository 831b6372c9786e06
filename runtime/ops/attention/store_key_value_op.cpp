#include "runtime/ops/attention/store_key_value_op.h"

#include <cmath>
#include <cstring>

#include "runtime/ops/attention/attention_inputs.h"
#include "runtime/ops/checks.h"

namespace mxspec {
namespace {

constexpr float kInfiniteHalf = 65520;  // rounds to 2^16, which float16 does not have; the largest that it has is 65504

uint32_t magnitude_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffff;
}

// Throws where a value is infinite in float16. NaN is allowed: it stays NaN.
void check_half(const char* name, const Tensor& values) {
  const float* const first = values.as<const float>();
  const int64_t count = values.shape.size();
  uint32_t largest = 0;  // as integers magnitudes have the same order, and the compiler takes many at a time
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, magnitude_bits(first[i]));
  if (largest < magnitude_bits(kInfiniteHalf)) return;
  for (int64_t i = 0; i < count; ++i) {
    if (!(std::abs(first[i]) >= kInfiniteHalf)) continue;
    throw OpError(std::string(name) + ": got " + std::to_string(first[i]) +
                  ", which a float16 cache cannot hold (at most 65504); compile with --caches float32 or mxint8");
  }
}

}  // namespace

StoreKeyValue::StoreKeyValue(const Attributes&) { usable_isa(); }

void StoreKeyValue::compute(Context& context) const {
  const Tensor key = context.input(0), value = context.input(1);
  const Tensor past_key = context.input(2), past_value = context.input(3);
  const Shape& cache = past_key.shape;
  const int64_t head_size = head_size_of(past_key);
  check_cache(past_key, past_value, head_size);
  if (key.shape.rank() != 4) throw_shape("key", key.shape, "[1, tokens, kv_heads, head_size]");
  check_new_entries(key, value, key.shape[1], cache[1], head_size);
  std::vector<AttentionSequence> sequences = read_sequences(context.input(5), key.shape[1]);
  read_slots(context.input(4), cache[0], sequences);
  check_room(cache[2], sequences);
  const CacheKind kind = kind_of(past_key);
  if (kind == CacheKind::kFloat16) {
    check_half("key", key);
    check_half("value", value);
  }
  check_in_place(context, 0, "key", past_key);
  check_in_place(context, 1, "value", past_value);

  AttentionCall call = {};
  call.mode = AttentionMode::kCausal;
  call.sequences = sequences.data();
  call.sequence_count = sequences.size();
  call.kv_heads = static_cast<size_t>(cache[1]);
  call.head_size = static_cast<size_t>(head_size);
  call.capacity = static_cast<size_t>(cache[2]);
  call.key = key.as<const float>();
  call.value = value.as<const float>();
  call.kind = kind;
  call.key_cache = past_key.data;
  call.value_cache = past_value.data;
  store_keys_and_values(call, chosen_isa().isa, shared_threads());
}

}  // namespace mxspec
