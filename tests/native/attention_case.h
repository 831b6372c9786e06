// Sequences with random values in the slots of a cache, attention over them, and the same in float64 by definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "formats/native/half.h"
#include "runtime/ops/kernels/attention.h"
#include "tests/native/pool_of.h"

namespace mxspec::test {

struct AttentionOptions {
  float softcap = 0;
  size_t window = 0;
  bool alibi = false;
  bool sinks = false;
  bool half = true;
  size_t distances = 0;  // of biases by distance, the first of which is first_distance
  int64_t first_distance = 0;
  AttentionMode mode = AttentionMode::kCausal;
};

struct AttentionSizes {
  size_t heads, kv_heads, head_size, capacity;
};

// A sequence's slot, its cached entries, and its new tokens.
struct Part {
  size_t slot, past, count;
};

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A call: new tokens of sequences, and a cache that holds what they follow on.
struct AttentionCase {
  AttentionSizes sizes;
  AttentionOptions options;
  std::vector<AttentionSequence> sequences;
  std::vector<float> query, key, value;     // [tokens, heads or kv_heads, head_size]
  std::vector<float> past_key, past_value;  // [slots, kv_heads, capacity, head_size], NaN where no past is; those
                                            // of sequences that see their own tokens have one slot, all of it NaN
  std::vector<float> slopes, sinks, distance_bias;

  AttentionCase(AttentionSizes sizes, AttentionOptions options, size_t slots, const std::vector<Part>& parts,
                unsigned seed)
      : sizes(sizes), options(options), past_key(slots * slot_values(), kNan), past_value(past_key) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    const auto fill = [&](auto begin, auto end) { std::generate(begin, end, [&] { return normal(random); }); };
    size_t tokens = 0;
    for (const Part& part : parts) {
      sequences.push_back({part.slot, part.past, tokens, part.count});
      tokens += part.count;
      for (size_t h = 0; h < sizes.kv_heads; ++h) {
        const size_t begin = part.slot * slot_values() + h * sizes.capacity * sizes.head_size;
        for (auto* cache : {&past_key, &past_value}) {
          fill(cache->begin() + begin, cache->begin() + begin + part.past * sizes.head_size);
        }
      }
    }
    query.resize(tokens * sizes.heads * sizes.head_size);
    key.resize(tokens * sizes.kv_heads * sizes.head_size);
    value.resize(key.size());
    for (auto* values : {&query, &key, &value}) fill(values->begin(), values->end());
    for (size_t h = 0; options.alibi && h < sizes.heads; ++h) slopes.push_back(std::exp2(-1.0f - h));
    for (size_t h = 0; options.sinks && h < sizes.heads; ++h) sinks.push_back(4.0f * h - 2);
    distance_bias.resize(sizes.heads * options.distances);
    fill(distance_bias.begin(), distance_bias.end());
  }

  size_t slot_values() const { return sizes.kv_heads * sizes.capacity * sizes.head_size; }

  // Where the sequence's entry of a key-value head stands in the cache.
  size_t entry(const AttentionSequence& of, size_t kv_head, size_t position) const {
    const size_t before = options.mode == AttentionMode::kOwn ? of.first : 0;
    return of.slot * slot_values() + (kv_head * sizes.capacity + before + position) * sizes.head_size;
  }
};

inline float rounded(float value) { return formats::half_to_float(formats::float_to_half(value)); }

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

struct AttentionResult {
  std::vector<float> output, key_cache, value_cache;

  bool operator==(const AttentionResult& other) const {
    return same_bits(output, other.output) && same_bits(key_cache, other.key_cache) &&
           same_bits(value_cache, other.value_cache);
  }
};

// body(call) of a call whose arrays are copies of the case's.
template <class Body>
AttentionResult run_with(const AttentionCase& c, const Body& body) {
  AttentionResult result{std::vector<float>(c.query.size(), 7), c.past_key, c.past_value};
  std::vector<uint16_t> half_key, half_value;
  for (size_t i = 0; c.options.half && i < c.past_key.size(); ++i) {
    half_key.push_back(formats::float_to_half(c.past_key[i]));
    half_value.push_back(formats::float_to_half(c.past_value[i]));
  }
  AttentionCall call = {};
  call.mode = c.options.mode;
  call.sequences = c.sequences.data();
  call.sequence_count = c.sequences.size();
  call.heads = c.sizes.heads;
  call.kv_heads = c.sizes.kv_heads;
  call.head_size = c.sizes.head_size;
  call.capacity = c.sizes.capacity;
  call.query = c.query.data();
  const bool stores = c.options.mode != AttentionMode::kStored;
  call.key = stores ? c.key.data() : nullptr;
  call.value = stores ? c.value.data() : nullptr;
  call.key_cache = c.options.half ? static_cast<void*>(half_key.data()) : result.key_cache.data();
  call.value_cache = c.options.half ? static_cast<void*>(half_value.data()) : result.value_cache.data();
  call.half_cache = c.options.half;
  call.slopes = c.options.alibi ? c.slopes.data() : nullptr;
  call.sinks = c.options.sinks ? c.sinks.data() : nullptr;
  call.distance_bias = c.options.distances != 0 ? c.distance_bias.data() : nullptr;
  call.distances = c.options.distances;
  call.first_distance = c.options.first_distance;
  call.output = result.output.data();
  call.scale = 0.25f;
  call.softcap = c.options.softcap;
  call.window = c.options.window;
  body(call);
  for (size_t i = 0; i < half_key.size(); ++i) {
    result.key_cache[i] = formats::half_to_float(half_key[i]);
    result.value_cache[i] = formats::half_to_float(half_value[i]);
  }
  return result;
}

inline AttentionResult run(const AttentionCase& c, Isa isa, ThreadPool& pool) {
  return run_with(c, [&](const AttentionCall& call) { attention(call, isa, pool_of(pool)); });
}

// Where the keys begin and end that a sequence's new token i sees.
inline std::pair<size_t, size_t> seen(const AttentionCase& c, const AttentionSequence& of, size_t i) {
  if (c.options.mode == AttentionMode::kStored) return {0, of.past};
  if (c.options.mode == AttentionMode::kOwn) return {0, of.count};
  const size_t end = of.past + i + 1;
  return {c.options.window && end > c.options.window ? end - c.options.window : 0, end};
}

inline double bias_at(const AttentionCase& c, size_t head, int64_t distance) {
  const int64_t last = static_cast<int64_t>(c.options.distances) - 1;
  const int64_t at = std::clamp<int64_t>(distance - c.options.first_distance, 0, last);
  return static_cast<double>(c.distance_bias[head * c.options.distances + static_cast<size_t>(at)]);
}

// Output of one head of a sequence's new token i in float64, from the definition.
inline std::vector<double> expected_row(const AttentionCase& c, const AttentionSequence& of, size_t i, size_t head) {
  const size_t d_count = c.sizes.head_size, kv_head = head / (c.sizes.heads / c.sizes.kv_heads);
  const size_t position = of.past + i;
  const auto [first, end] = seen(c, of, i);
  const auto cached = [&](const std::vector<float>& past, const std::vector<float>& fresh, size_t j, size_t d) {
    const float value = j < of.past ? past[c.entry(of, kv_head, j) + d]
                                    : fresh[((of.first + j - of.past) * c.sizes.kv_heads + kv_head) * d_count + d];
    return static_cast<double>(c.options.half ? rounded(value) : value);
  };
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t j = first; j < end; ++j) {
    double s = 0;
    for (size_t d = 0; d < d_count; ++d) {
      s += c.query[((of.first + i) * c.sizes.heads + head) * d_count + d] * cached(c.past_key, c.key, j, d);
    }
    s *= 0.25;
    if (c.options.softcap != 0) s = std::tanh(s / c.options.softcap) * c.options.softcap;
    if (c.options.alibi) s += c.slopes[head] * (static_cast<double>(j) - static_cast<double>(position));
    if (c.options.distances != 0) s += bias_at(c, head, static_cast<int64_t>(j) - static_cast<int64_t>(position));
    weights.push_back(s);
    largest = std::max(largest, s);
  }
  if (c.options.sinks) largest = std::max<double>(largest, c.sinks[head]);
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  if (c.options.sinks) sum += std::exp(c.sinks[head] - largest);
  std::vector<double> row(d_count);
  for (size_t j = first; j < end; ++j) {
    for (size_t d = 0; d < d_count; ++d) row[d] += weights[j - first] / sum * cached(c.past_value, c.value, j, d);
  }
  return row;
}

}  // namespace mxspec::test
