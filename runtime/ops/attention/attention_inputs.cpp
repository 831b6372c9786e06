#include "runtime/ops/attention/attention_inputs.h"

#include <string>

#include "runtime/ops/checks.h"

namespace mxspec {
namespace {

constexpr const char* kCacheShape = "[slots, kv_heads, capacity, head_size]";

void expect_shape(const char* name, const Shape& got, const Shape& expected, const char* meaning) {
  if (!(got == expected)) throw_shape(name, got, std::string(meaning) + " = " + expected.text());
}

void expect_rank(size_t rank, const char* name, const Shape& got, const char* meaning) {
  if (got.rank() != rank) throw_shape(name, got, meaning);
}

std::string at(const char* name, int64_t index, int64_t value) {
  return std::string(name) + "[" + std::to_string(index) + "]: got " + std::to_string(value);
}

}  // namespace

void check_query(const Tensor& query, int64_t kv_heads) {
  const Shape& shape = query.shape;
  expect_rank(4, "query", shape, "[1, tokens, heads, head_size]");
  const int64_t heads = shape[2], head_size = shape[3];
  expect_shape("query", shape, {1, shape[1], heads, head_size}, "[1, tokens, heads, head_size]");
  if (head_size < 2 || head_size % 2 != 0) {
    throw OpError("query: got head_size " + std::to_string(head_size) + ", expected a multiple of 2");
  }
  if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
    throw OpError("query: got " + std::to_string(heads) + " heads, expected a multiple of the " +
                  std::to_string(kv_heads) + " key-value heads");
  }
}

CacheKind kind_of(const Tensor& past) {
  switch (past.type) {
    case ElementType::kFloat32:
      return CacheKind::kFloat32;
    case ElementType::kFloat16:
      return CacheKind::kFloat16;
    case ElementType::kUint8:
      return CacheKind::kMxInt8;
    default:
      throw OpError("past_key: got " + name_of(past.type) + ", expected float32, float16, or uint8 for MXINT8");
  }
}

int64_t head_size_of(const Tensor& past) {
  expect_rank(4, "past_key", past.shape, kCacheShape);
  const int64_t last = past.shape[3];
  if (kind_of(past) != CacheKind::kMxInt8) return last;
  constexpr int64_t kBlock = kCacheBlock;
  if (last >= 1 && last % (kBlock + 1) == 0) return last / (kBlock + 1) * kBlock;
  throw OpError("past_key: got " + std::to_string(last) + " bytes an entry, expected a multiple of " +
                std::to_string(kBlock + 1) + " for MXINT8");
}

void check_cache(const Tensor& past_key, const Tensor& past_value, int64_t head_size) {
  const Shape& shape = past_key.shape;
  expect_rank(4, "past_key", shape, kCacheShape);
  head_size_of(past_key);  // refuses entries that have no whole blocks
  const int64_t blocks = kind_of(past_key) == CacheKind::kMxInt8 ? head_size / static_cast<int64_t>(kCacheBlock) : 0;
  expect_shape("past_key", shape, {shape[0], shape[1], shape[2], head_size + blocks}, kCacheShape);
  expect_shape("past_value", past_value.shape, shape, "the shape of past_key");
  if (past_value.type != past_key.type) {
    throw OpError("past_value: got " + name_of(past_value.type) + ", expected " + name_of(past_key.type) +
                  " like past_key");
  }
}

void check_new_entries(const Tensor& key, const Tensor& value, int64_t tokens, int64_t kv_heads, int64_t head_size) {
  const Shape expected = {1, tokens, kv_heads, head_size};
  expect_shape("key", key.shape, expected, "[1, tokens, kv_heads, head_size]");
  expect_shape("value", value.shape, expected, "[1, tokens, kv_heads, head_size]");
}

void check_per_head(const char* name, const std::optional<Tensor>& values, int64_t heads) {
  if (values) expect_shape(name, values->shape, {heads}, "[heads]");
}

void check_distance_bias(const std::optional<Tensor>& bias, int64_t heads) {
  if (!bias) return;
  const Shape& shape = bias->shape;
  if (shape.rank() != 2 || shape[0] != heads || shape[1] < 1) {
    throw_shape("distance_bias", shape, "[heads, distances] with " + std::to_string(heads) + " heads and a distance");
  }
}

std::vector<AttentionSequence> read_sequences(const Tensor& new_lengths, int64_t tokens) {
  expect_rank(1, "new_lengths", new_lengths.shape, "[sequences]");
  std::vector<AttentionSequence> sequences;
  int64_t first = 0;
  for (int64_t i = 0; i < new_lengths.shape[0]; ++i) {
    const int64_t count = new_lengths.as<const int32_t>()[i];
    if (count < 1) throw OpError(at("new_lengths", i, count) + ", expected 1 or more");
    sequences.push_back({0, 0, static_cast<size_t>(first), static_cast<size_t>(count)});
    first += count;
  }
  if (first == tokens) return sequences;
  throw OpError("new_lengths: got " + std::to_string(first) + " tokens together, expected the " +
                std::to_string(tokens) + " of the call");
}

void read_slots(const Tensor& slots, int64_t slot_count, std::vector<AttentionSequence>& sequences) {
  expect_shape("slots", slots.shape, {static_cast<int64_t>(sequences.size())}, "[sequences]");
  std::vector<bool> taken(static_cast<size_t>(slot_count));
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t slot = slots.as<const int32_t>()[i];
    if (slot < 0 || slot >= slot_count) {
      throw OpError(at("slots", i, slot) + ", expected 0 to " + std::to_string(slot_count - 1));
    }
    if (taken[slot]) throw OpError(at("slots", i, slot) + " a second time, expected a slot for each sequence");
    taken[slot] = true;
    sequences[i].slot = static_cast<size_t>(slot);
  }
}

void read_past(const Tensor& past_lengths, int64_t capacity, int64_t window,
               std::vector<AttentionSequence>& sequences) {
  expect_shape("past_lengths", past_lengths.shape, {static_cast<int64_t>(sequences.size())}, "[sequences]");
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t past = past_lengths.as<const int32_t>()[i], count = static_cast<int64_t>(sequences[i].count);
    if (past < 0) throw OpError(at("past_lengths", i, past) + ", expected 0 or more");
    sequences[i].past = static_cast<size_t>(past);
    const size_t seen = static_cast<size_t>(window);
    if (has_room(static_cast<size_t>(capacity), seen, sequences[i].past, sequences[i].count)) continue;
    const std::string got = at("past_lengths", i, past) + " and " + std::to_string(count) + " new, ";
    const std::string room = "the cache's capacity " + std::to_string(capacity);
    if (window == 0) throw OpError(got + "expected at most " + room + " together");
    throw OpError(got + "expected at most " + room + " together, or a capacity that is a multiple of " +
                  std::to_string(kSpanKeys) + " and at least " + std::to_string(seen + sequences[i].count - 1) +
                  " for a window of " + std::to_string(window));
  }
}

void read_encoder_lengths(const Tensor& encoder_lengths, int64_t capacity, std::vector<AttentionSequence>& sequences) {
  expect_shape("encoder_lengths", encoder_lengths.shape, {static_cast<int64_t>(sequences.size())}, "[sequences]");
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t length = encoder_lengths.as<const int32_t>()[i];
    if (length < 1 || length > capacity) {
      throw OpError(at("encoder_lengths", i, length) + ", expected 1 to the cache's capacity " +
                    std::to_string(capacity));
    }
    sequences[i].past = static_cast<size_t>(length);
  }
}

void check_room(int64_t capacity, const std::vector<AttentionSequence>& sequences) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t count = static_cast<int64_t>(sequences[i].count);
    if (count <= capacity) continue;
    throw OpError(at("new_lengths", i, count) + ", expected at most the cache's capacity " + std::to_string(capacity));
  }
}

void check_in_place(Context& context, size_t index, const char* name, const Tensor& past) {
  const Tensor present = context.output(index, past.type, past.shape);
  if (present.data == past.data || past.shape.size() == 0) return;
  throw OpError("present_" + std::string(name) + ": got a buffer of its own, expected that of past_" + name +
                "; bind both to one OrtValue, so that the cache is written in place");
}

}  // namespace mxspec
