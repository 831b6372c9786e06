#include "runtime/ops/qkv_attention_op.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/ops/kernels/rotary.h"
#include "runtime/ops/rotary_op.h"

namespace mxspec {
namespace {

// A task has about this many values, so that handing it to another thread costs less than doing it (tens of us).
constexpr int64_t kValuesPerTask = 32768;

// How many query heads the row width says there are.
int64_t query_heads(const Shape& qkv, const Shape& past) {
  if (past.rank() != 4 || past[1] < 1 || past[3] < 1) {
    throw OpError("past_key: got shape " + past.text() + ", expected [batch, kv_heads, capacity, head_size]");
  }
  const int64_t kv_heads = past[1], head_size = past[3];
  const int64_t heads = qkv.rank() == 3 ? qkv[2] / head_size - 2 * kv_heads : 0;
  if (heads < 1 || qkv[2] % head_size != 0 || heads % kv_heads != 0) {
    throw OpError("qkv: got shape " + qkv.text() +
                  ", expected [batch, seq, (heads + 2 kv_heads) * head_size] with heads a multiple of kv_heads, for " +
                  "past_key " + past.text());
  }
  return heads;
}

// The calling thread's memory for rotated rows, kept from call to call; it grows to what the largest call wanted.
float* scratch(size_t count) {
  thread_local std::vector<float> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

Tensor floats(float* data, const Shape& shape) { return {ElementType::kFloat32, shape, data}; }

}  // namespace

void QkvAttentionBase::compute(Context& context) const {
  const Tensor qkv = context.input(0);
  const Tensor past_key = context.input(1);
  const std::optional<Tensor> cos = context.optional_input(5);
  const std::optional<Tensor> sin = context.optional_input(6);
  const int64_t heads = query_heads(qkv.shape, past_key.shape);
  const int64_t batch = qkv.shape[0], seq = qkv.shape[1], kv_heads = past_key.shape[1], head_size = past_key.shape[3];
  const Shape query_shape{batch, seq, heads, head_size}, key_shape{batch, seq, kv_heads, head_size};
  if (cos.has_value() != sin.has_value()) throw OpError("cos and sin: got one of them, expected both or neither");
  if (cos) check_rotary_tables(cos->shape, sin->shape, query_shape);

  // Queries, keys and values apart, as the attention reads them: tiny beside the cache for a few rows, and for many
  // tiny beside the products.
  const int64_t rows = batch * seq, query_values = heads * head_size, key_values = kv_heads * head_size;
  float* const query = scratch(static_cast<size_t>(qkv.shape.size()));
  float* const key = query + rows * query_values;
  float* const value = key + rows * key_values;
  const int64_t rotary = cos ? cos->shape[2] : 0;
  const auto take = [&](const float* from, int64_t row, int64_t count, float* to) {
    const float* const row_cos = cos ? cos->as<const float>() + row * rotary : nullptr;
    const float* const row_sin = sin ? sin->as<const float>() + row * rotary : nullptr;
    rotate_heads(from, row_cos, row_sin, count, head_size, rotary, to + row * count * head_size);
  };
  const int64_t rows_per_task = std::max<int64_t>(1, kValuesPerTask / qkv.shape[2]);
  context.parallel_for((rows + rows_per_task - 1) / rows_per_task, [&](size_t task) {
    const int64_t first = static_cast<int64_t>(task) * rows_per_task;
    for (int64_t row = first; row < std::min(rows, first + rows_per_task); ++row) {
      const float* const from = qkv.as<const float>() + row * qkv.shape[2];
      take(from, row, heads, query);
      take(from + query_values, row, kv_heads, key);
      std::memcpy(value + row * key_values, from + query_values + key_values, key_values * sizeof(float));
    }
  });

  const Inputs inputs = {floats(query, query_shape), floats(key, key_shape), floats(value, key_shape), past_key,
                         context.input(2),           context.input(3),       context.input(4),         std::nullopt};
  attend(context, inputs, Shape{batch, seq, query_values});
}

}  // namespace mxspec
