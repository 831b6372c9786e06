#include "runtime/ops/attention_op.h"

#include <cmath>
#include <cstring>

#include "runtime/ops/kernels/attention.h"

namespace mxspec {
namespace {

void expect_shape(const char* name, const Shape& got, const Shape& expected, const std::string& meaning) {
  if (got == expected) return;
  throw OpError(std::string(name) + ": got shape " + got.text() + ", expected " + meaning + " = " + expected.text());
}

void expect_rank_4(const char* name, const Shape& got, const char* meaning) {
  if (got.rank() != 4) throw OpError(std::string(name) + ": got shape " + got.text() + ", expected " + meaning);
}

// A cache that is not bound in place starts as a copy of the past.
void copy_past(const Context& context, const Tensor& past, const Tensor& present) {
  if (past.data == present.data || past.shape.size() == 0) return;
  const size_t width = past.type == ElementType::kFloat16 ? 2 : 4;
  const size_t heads = past.shape[0] * past.shape[1], bytes = past.shape[2] * past.shape[3] * width;
  context.parallel_for(heads, [&](size_t head) {
    std::memcpy(present.as<char>() + head * bytes, past.as<const char>() + head * bytes, bytes);
  });
}

}  // namespace

void AttentionBase::check_shapes(const Inputs& in) {
  const Shape& query = in.query.shape;
  const Shape& past = in.past_key.shape;
  expect_rank_4("query", query, "[batch, seq, heads, head_size]");
  expect_rank_4("past_key", past, "[batch, kv_heads, capacity, head_size]");
  const int64_t batch = query[0], seq = query[1], heads = query[2], head_size = query[3], kv_heads = past[1];
  if (head_size < 4 || head_size % 4 != 0) {
    throw OpError("query: got head_size " + std::to_string(head_size) + ", expected a multiple of 4");
  }
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
    throw OpError("query: got " + std::to_string(heads) + " heads, expected a multiple of the " +
                  std::to_string(kv_heads) + " key-value heads of past_key");
  }
  expect_shape("past_key", past, {batch, kv_heads, past[2], head_size}, "[batch, kv_heads, capacity, head_size]");
  expect_shape("past_value", in.past_value.shape, past, "the shape of past_key");
  expect_shape("key", in.key.shape, {batch, seq, kv_heads, head_size}, "[batch, seq, kv_heads, head_size]");
  expect_shape("value", in.value.shape, {batch, seq, kv_heads, head_size}, "[batch, seq, kv_heads, head_size]");
  expect_shape("past_lengths", in.past_lengths.shape, {batch}, "[batch]");
  expect_shape("new_lengths", in.new_lengths.shape, {batch}, "[batch]");
  if (in.slopes) expect_shape("alibi_slopes", in.slopes->shape, {heads}, "[heads]");
  const ElementType cache = in.past_key.type;
  if (cache != ElementType::kFloat16 && cache != ElementType::kFloat32) {
    throw OpError("past_key: got " + name_of(cache) + ", expected float16 or float32");
  }
  if (in.past_value.type != cache) {
    throw OpError("past_value: got " + name_of(in.past_value.type) + ", expected " + name_of(cache) + " like past_key");
  }
}

void AttentionBase::check_lengths(const Inputs& in) {
  const int64_t seq = in.query.shape[1], capacity = in.past_key.shape[2];
  for (int64_t batch = 0; batch < in.query.shape[0]; ++batch) {
    const int64_t past = in.past_lengths.as<const int32_t>()[batch];
    const int64_t fresh = in.new_lengths.as<const int32_t>()[batch];
    const std::string where = std::string("[").append(std::to_string(batch)).append("]: got ");
    if (past < 0) throw OpError("past_lengths" + where + std::to_string(past) + ", expected 0 or more");
    if (fresh < 0 || fresh > seq) {
      throw OpError("new_lengths" + where + std::to_string(fresh) + ", expected 0 to seq = " + std::to_string(seq));
    }
    if (past + fresh > capacity) {
      throw OpError("past_lengths" + where + std::to_string(past) + " and " + std::to_string(fresh) +
                    " new, expected at most the cache's capacity " + std::to_string(capacity) + " together");
    }
  }
}

AttentionBase::AttentionBase(const Attributes& attributes)
    : scale_(attributes.number("scale")),
      softcap_(attributes.number("softcap", 0)),
      window_(attributes.integer("window", 0)) {
  if (!std::isfinite(scale_)) throw OpError("attribute scale: got " + std::to_string(scale_) + ", expected a number");
  if (!std::isfinite(softcap_) || softcap_ < 0) {
    throw OpError("attribute softcap: got " + std::to_string(softcap_) + ", expected 0 (none) or more");
  }
  if (window_ < 0) {
    throw OpError("attribute window: got " + std::to_string(window_) + ", expected 0 (none) or more");
  }
  if (!chosen_isa().error.empty()) throw OpError(chosen_isa().error);
}

void AttentionBase::compute(Context& context) const {
  const Inputs in = {context.input(0), context.input(1), context.input(2), context.input(3),
                     context.input(4), context.input(5), context.input(6), context.optional_input(7)};
  attend(context, in, in.query.shape);
}

void AttentionBase::attend(Context& context, const Inputs& in, const Shape& output_shape) const {
  check_shapes(in);
  check_lengths(in);
  const Tensor output = context.output(0, ElementType::kFloat32, output_shape);
  const Tensor present_key = context.output(1, in.past_key.type, in.past_key.shape);
  const Tensor present_value = context.output(2, in.past_key.type, in.past_key.shape);
  copy_past(context, in.past_key, present_key);
  copy_past(context, in.past_value, present_value);

  const Shape& query = in.query.shape;
  const AttentionCall call = {
      .batch = static_cast<size_t>(query[0]),
      .seq = static_cast<size_t>(query[1]),
      .heads = static_cast<size_t>(query[2]),
      .kv_heads = static_cast<size_t>(in.past_key.shape[1]),
      .head_size = static_cast<size_t>(query[3]),
      .capacity = static_cast<size_t>(in.past_key.shape[2]),
      .query = in.query.as<const float>(),
      .key = in.key.as<const float>(),
      .value = in.value.as<const float>(),
      .key_cache = present_key.data,
      .value_cache = present_value.data,
      .half_cache = in.past_key.type == ElementType::kFloat16,
      .past_lengths = in.past_lengths.as<const int32_t>(),
      .new_lengths = in.new_lengths.as<const int32_t>(),
      .slopes = in.slopes ? in.slopes->as<const float>() : nullptr,
      .output = output.as<float>(),
      .scale = scale_,
      .softcap = softcap_,
      .window = static_cast<size_t>(window_),
  };
  attention(call, chosen_isa().isa, shared_threads());
}

}  // namespace mxspec
