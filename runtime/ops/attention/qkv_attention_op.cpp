#include "runtime/ops/attention/qkv_attention_op.h"

#include <cmath>

#include "runtime/ops/attention/attention_inputs.h"
#include "runtime/ops/attention/qkv_rows.h"
#include "runtime/ops/checks.h"
#include "runtime/ops/rotary_op.h"
#include "runtime/ops/scratch.h"

namespace mxspec {
namespace {

// A task has about this many values, so that handing it to another thread costs less than doing it (tens of us).
constexpr int64_t kValuesPerTask = 32768;

constexpr float kNoEpsilon = -1;  // the attribute is absent

// Number of query heads, from the row width.
int64_t query_heads(const Shape& qkv, const Shape& past, int64_t head_size) {
  if (past[1] < 1 || head_size < 1) throw_shape("past_key", past, "[slots, kv_heads, capacity, head_size]");
  const int64_t kv_heads = past[1];
  const int64_t heads = qkv.rank() == 3 && qkv[0] == 1 ? qkv[2] / head_size - 2 * kv_heads : 0;
  if (heads < 1 || qkv[2] % head_size != 0 || heads % kv_heads != 0) {
    throw_shape(
        "qkv", qkv,
        "[1, tokens, (heads + 2 kv_heads) * head_size] with heads a multiple of kv_heads, for past_key " + past.text());
  }
  return heads;
}

// A weight norms a head at a time if it is a head long, or all heads together, which then have to lie side by side.
void set_norm(QkvPart& part, const char* name, const std::optional<Tensor>& weight, int64_t head_size, float epsilon) {
  if (!weight) return;
  const Shape head = {head_size}, all = {part.heads * head_size};
  const bool together = part.runs == 1;
  if (!(weight->shape == head) && !(together && weight->shape == all)) {
    throw_shape(name, weight->shape,
                together ? head.text() + " or " + all.text() + ", as a head or all are long"
                         : head.text() + ", as a head is long");
  }
  if (epsilon == kNoEpsilon) throw OpError("attribute norm_epsilon: missing, expected beside " + std::string(name));
  part.norm = weight->as<const float>();
  part.norm_size = weight->shape[0];
}

Tensor floats(float* data, const Shape& shape) { return {ElementType::kFloat32, shape, data}; }

}  // namespace

QkvAttentionBase::QkvAttentionBase(const Attributes& attributes)
    : CausalAttention(attributes),
      norm_epsilon_(attributes.number("norm_epsilon", kNoEpsilon)),
      interleaved_(read_switch(attributes, "interleaved")),
      pairs_(read_switch(attributes, "pairs")),
      norm_row_(norm_function(NormKind::kRms, chosen_isa().isa)) {
  if (norm_epsilon_ != kNoEpsilon && !(std::isfinite(norm_epsilon_) && norm_epsilon_ >= 0)) {
    throw OpError("attribute norm_epsilon: got " + std::to_string(norm_epsilon_) + ", expected 0 or more");
  }
}

void QkvAttentionBase::compute(Context& context) const {
  const Tensor qkv = context.input(0);
  const Tensor past_key = context.input(1);
  const std::optional<Tensor> cos = context.optional_input(6);
  const std::optional<Tensor> sin = context.optional_input(7);
  const int64_t head_size = head_size_of(past_key);
  const int64_t heads = query_heads(qkv.shape, past_key.shape, head_size);
  const int64_t tokens = qkv.shape[1], kv_heads = past_key.shape[1];
  const Shape query_shape{1, tokens, heads, head_size}, key_shape{1, tokens, kv_heads, head_size};
  if (cos.has_value() != sin.has_value()) throw OpError("cos and sin: got one of them, expected both or neither");
  if (cos) check_rotary_tables(cos->shape, sin->shape, query_shape);

  // Queries, keys and values apart, as the attention reads them: tiny beside the cache for a few rows, and for many
  // tiny beside the products.
  const int64_t width = qkv.shape[2];
  float* const query = reinterpret_cast<float*>(scratch(static_cast<size_t>(qkv.shape.size()) * sizeof(float)));
  float* const key = query + tokens * heads * head_size;
  float* const value = key + tokens * kv_heads * head_size;
  const int64_t runs = interleaved_ ? kv_heads : 1, stride = width / runs;
  const int64_t query_run = heads / runs, key_run = kv_heads / runs;
  QkvPart queries = {0, runs, query_run, stride, true, query};
  QkvPart keys = {query_run * head_size, runs, key_run, stride, true, key};
  const QkvPart values = {(query_run + key_run) * head_size, runs, key_run, stride, false, value};
  set_norm(queries, "query_norm_weight", context.optional_input(8), head_size, norm_epsilon_);
  set_norm(keys, "key_norm_weight", context.optional_input(9), head_size, norm_epsilon_);

  const QkvRows source = {
      .qkv = qkv.as<const float>(),
      .width = width,
      .head_size = head_size,
      .cos = cos ? cos->as<const float>() : nullptr,
      .sin = sin ? sin->as<const float>() : nullptr,
      .rotary = cos ? 2 * cos->shape[2] : 0,
      .pairs = pairs_,
      .norm_row = norm_row_,
      .norm_epsilon = norm_epsilon_,
  };
  context.parallel_rows(tokens, width, kValuesPerTask, [&](int64_t row) {
    source.take(queries, row);
    source.take(keys, row);
    source.take(values, row);
  });

  const Inputs inputs = {
      floats(query, query_shape), floats(key, key_shape),     floats(value, key_shape),  past_key,
      context.input(2),           context.input(3),           context.input(4),          context.input(5),
      context.optional_input(10), context.optional_input(11), context.optional_input(12)};
  attend_and_append(context, inputs, Shape{1, tokens, heads * head_size});
}

}  // namespace mxspec
