#include "runtime/ops/attention_op.h"

#include <cmath>
#include <vector>

#include "runtime/ops/checks.h"
#include "runtime/ops/kernels/attention.h"

namespace mxspec {
namespace {

void expect_shape(const char* name, const Shape& got, const Shape& expected, const char* meaning) {
  if (!(got == expected)) throw_shape(name, got, std::string(meaning) + " = " + expected.text());
}

void expect_rank(size_t rank, const char* name, const Shape& got, const char* meaning) {
  if (got.rank() != rank) throw_shape(name, got, meaning);
}

// The output that is the buffer of a cache. In another buffer it would have to begin as a copy of every slot.
Tensor in_place(Context& context, size_t index, const char* name, const Tensor& past) {
  const Tensor present = context.output(index, past.type, past.shape);
  if (present.data == past.data || past.shape.size() == 0) return present;
  throw OpError("present_" + std::string(name) + ": got a buffer of its own, expected that of past_" + name +
                "; bind both to one OrtValue, so that the cache is written in place");
}

std::string at(const char* name, int64_t index, int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "]: got " + std::to_string(value);
}

// Where the sequences lie among the tokens and in the cache.
std::vector<AttentionSequence> read_sequences(const Tensor& slots, const Tensor& past_lengths,
                                              const Tensor& new_lengths, int64_t tokens, const Shape& cache) {
  std::vector<AttentionSequence> sequences;
  std::vector<bool> taken(static_cast<size_t>(cache[0]));
  int64_t first = 0;
  for (int64_t i = 0; i < slots.shape[0]; ++i) {
    const int64_t slot = slots.as<const int32_t>()[i], past = past_lengths.as<const int32_t>()[i];
    const int64_t count = new_lengths.as<const int32_t>()[i];
    if (slot < 0 || slot >= cache[0]) {
      throw OpError(at("slots", i, slot) + ", expected 0 to " + std::to_string(cache[0] - 1));
    }
    if (taken[slot]) throw OpError(at("slots", i, slot) + " a second time, expected a slot for each sequence");
    if (past < 0) throw OpError(at("past_lengths", i, past) + ", expected 0 or more");
    if (count < 1) throw OpError(at("new_lengths", i, count) + ", expected 1 or more");
    if (past + count > cache[2]) {
      throw OpError(at("past_lengths", i, past) + " and " + std::to_string(count) +
                    " new, expected at most the cache's capacity " + std::to_string(cache[2]) + " together");
    }
    taken[slot] = true;
    sequences.push_back(
        {static_cast<size_t>(slot), static_cast<size_t>(past), static_cast<size_t>(first), static_cast<size_t>(count)});
    first += count;
  }
  if (first != tokens) {
    throw OpError("new_lengths: got " + std::to_string(first) + " tokens together, expected the " +
                  std::to_string(tokens) + " of the call");
  }
  return sequences;
}

}  // namespace

void AttentionBase::check_shapes(const Inputs& in) {
  const Shape& query = in.query.shape;
  const Shape& past = in.past_key.shape;
  expect_rank(4, "query", query, "[1, tokens, heads, head_size]");
  expect_rank(4, "past_key", past, "[slots, kv_heads, capacity, head_size]");
  const int64_t tokens = query[1], heads = query[2], head_size = query[3], kv_heads = past[1];
  expect_shape("query", query, {1, tokens, heads, head_size}, "[1, tokens, heads, head_size]");
  if (head_size < 2 || head_size % 2 != 0) {
    throw OpError("query: got head_size " + std::to_string(head_size) + ", expected a multiple of 2");
  }
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
    throw OpError("query: got " + std::to_string(heads) + " heads, expected a multiple of the " +
                  std::to_string(kv_heads) + " key-value heads of past_key");
  }
  expect_shape("past_key", past, {past[0], kv_heads, past[2], head_size}, "[slots, kv_heads, capacity, head_size]");
  expect_shape("past_value", in.past_value.shape, past, "the shape of past_key");
  expect_shape("key", in.key.shape, {1, tokens, kv_heads, head_size}, "[1, tokens, kv_heads, head_size]");
  expect_shape("value", in.value.shape, {1, tokens, kv_heads, head_size}, "[1, tokens, kv_heads, head_size]");
  expect_rank(1, "slots", in.slots.shape, "[sequences]");
  expect_shape("past_lengths", in.past_lengths.shape, in.slots.shape, "[sequences]");
  expect_shape("new_lengths", in.new_lengths.shape, in.slots.shape, "[sequences]");
  if (in.slopes) expect_shape("alibi_slopes", in.slopes->shape, {heads}, "[heads]");
  if (in.sinks) expect_shape("sinks", in.sinks->shape, {heads}, "[heads]");
  const ElementType cache = in.past_key.type;
  if (cache != ElementType::kFloat16 && cache != ElementType::kFloat32) {
    throw OpError("past_key: got " + name_of(cache) + ", expected float16 or float32");
  }
  if (in.past_value.type != cache) {
    throw OpError("past_value: got " + name_of(in.past_value.type) + ", expected " + name_of(cache) + " like past_key");
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
  usable_isa();
}

void AttentionBase::compute(Context& context) const {
  const Inputs in = {context.input(0),          context.input(1),         context.input(2), context.input(3),
                     context.input(4),          context.input(5),         context.input(6), context.input(7),
                     context.optional_input(8), context.optional_input(9)};
  attend(context, in, in.query.shape);
}

void AttentionBase::attend(Context& context, const Inputs& in, const Shape& output_shape) const {
  check_shapes(in);
  const Shape &query = in.query.shape, &cache = in.past_key.shape;
  const std::vector<AttentionSequence> sequences =
      read_sequences(in.slots, in.past_lengths, in.new_lengths, query[1], cache);
  const Tensor output = context.output(0, ElementType::kFloat32, output_shape);
  const Tensor present_key = in_place(context, 1, "key", in.past_key);
  const Tensor present_value = in_place(context, 2, "value", in.past_value);

  const AttentionCall call = {
      .sequences = sequences.data(),
      .sequence_count = sequences.size(),
      .heads = static_cast<size_t>(query[2]),
      .kv_heads = static_cast<size_t>(cache[1]),
      .head_size = static_cast<size_t>(query[3]),
      .capacity = static_cast<size_t>(cache[2]),
      .query = in.query.as<const float>(),
      .key = in.key.as<const float>(),
      .value = in.value.as<const float>(),
      .key_cache = present_key.data,
      .value_cache = present_value.data,
      .half_cache = in.past_key.type == ElementType::kFloat16,
      .slopes = in.slopes ? in.slopes->as<const float>() : nullptr,
      .sinks = in.sinks ? in.sinks->as<const float>() : nullptr,
      .output = output.as<float>(),
      .scale = scale_,
      .softcap = softcap_,
      .window = static_cast<size_t>(window_),
  };
  attention(call, chosen_isa().isa, shared_threads());
}

}  // namespace mxspec
