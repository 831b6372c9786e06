// Random sequences with a cache, attention over them, and the same in float64 from the definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "formats/native/half.h"
#include "runtime/ops/kernels/attention.h"
#include "runtime/ops/kernels/thread_pool.h"

namespace mxspec::test {

struct AttentionOptions {
  float softcap = 0;
  size_t window = 0;
  bool alibi = false;
  bool half = true;
};

struct AttentionSizes {
  size_t heads, kv_heads, head_size, capacity;
};

// A batch of sequences with a filled cache, and new rows to attend.
struct AttentionCase {
  AttentionSizes sizes;
  AttentionOptions options;
  std::vector<int32_t> past, fresh;
  size_t seq;
  std::vector<float> query, key, value, slopes;
  std::vector<float> past_key, past_value;  // [batch, kv_heads, capacity, head_size], NaN behind the past

  AttentionCase(AttentionSizes sizes, AttentionOptions options, std::vector<int32_t> past, std::vector<int32_t> fresh,
                size_t seq, unsigned seed)
      : sizes(sizes), options(options), past(past), fresh(fresh), seq(seq) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 2);
    const auto fill = [&](std::vector<float>& values, size_t count) {
      values.resize(count);
      for (float& value : values) value = normal(random);
    };
    const size_t rows = past.size() * seq;
    fill(query, rows * sizes.heads * sizes.head_size);
    fill(key, rows * sizes.kv_heads * sizes.head_size);
    fill(value, rows * sizes.kv_heads * sizes.head_size);
    fill(past_key, past.size() * cache_of_one());
    fill(past_value, past.size() * cache_of_one());
    for (size_t h = 0; options.alibi && h < sizes.heads; ++h) slopes.push_back(std::exp2(-1.0f - h));
    for (size_t b = 0; b < past.size(); ++b) {
      for (size_t h = 0; h < sizes.kv_heads; ++h) {
        for (size_t i = past[b] * sizes.head_size; i < sizes.capacity * sizes.head_size; ++i) {
          const size_t at = (b * sizes.kv_heads + h) * sizes.capacity * sizes.head_size + i;
          past_key[at] = past_value[at] = std::numeric_limits<float>::quiet_NaN();
        }
      }
    }
  }

  size_t cache_of_one() const { return sizes.kv_heads * sizes.capacity * sizes.head_size; }
};

inline float rounded(float value) { return formats::half_to_float(formats::float_to_half(value)); }

struct AttentionResult {
  std::vector<float> output, key_cache, value_cache;

  bool operator==(const AttentionResult& other) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
    };
    return same(output, other.output) && same(key_cache, other.key_cache) && same(value_cache, other.value_cache);
  }
};

inline ParallelFor pool_of(ThreadPool& pool) {
  const auto run = [](void* context, size_t count, void (*body)(void*, size_t), void* user) {
    static_cast<ThreadPool*>(context)->run(count, body, user);
  };
  return {run, &pool, pool.threads()};
}

inline AttentionResult run(const AttentionCase& c, Isa isa, ThreadPool& pool) {
  AttentionResult result{std::vector<float>(c.query.size(), 7), c.past_key, c.past_value};
  std::vector<uint16_t> half_key, half_value;
  for (size_t i = 0; c.options.half && i < c.past_key.size(); ++i) {
    half_key.push_back(formats::float_to_half(c.past_key[i]));
    half_value.push_back(formats::float_to_half(c.past_value[i]));
  }
  AttentionCall call = {};
  call.batch = c.past.size();
  call.seq = c.seq;
  call.heads = c.sizes.heads;
  call.kv_heads = c.sizes.kv_heads;
  call.head_size = c.sizes.head_size;
  call.capacity = c.sizes.capacity;
  call.query = c.query.data();
  call.key = c.key.data();
  call.value = c.value.data();
  call.key_cache = c.options.half ? static_cast<void*>(half_key.data()) : result.key_cache.data();
  call.value_cache = c.options.half ? static_cast<void*>(half_value.data()) : result.value_cache.data();
  call.half_cache = c.options.half;
  call.past_lengths = c.past.data();
  call.new_lengths = c.fresh.data();
  call.slopes = c.options.alibi ? c.slopes.data() : nullptr;
  call.output = result.output.data();
  call.scale = 0.25f;
  call.softcap = c.options.softcap;
  call.window = c.options.window;
  attention(call, isa, pool_of(pool));
  for (size_t i = 0; i < half_key.size(); ++i) {
    result.key_cache[i] = formats::half_to_float(half_key[i]);
    result.value_cache[i] = formats::half_to_float(half_value[i]);
  }
  return result;
}

// One output row in float64, from the definition.
inline std::vector<double> expected_row(const AttentionCase& c, size_t b, size_t i, size_t head) {
  const size_t d_count = c.sizes.head_size, kv_head = head / (c.sizes.heads / c.sizes.kv_heads);
  const size_t position = c.past[b] + i;
  const size_t first = c.options.window && position + 1 > c.options.window ? position + 1 - c.options.window : 0;
  const auto cached = [&](const std::vector<float>& past, const std::vector<float>& fresh, size_t j, size_t d) {
    const size_t old = static_cast<size_t>(c.past[b]);
    const float value = j < old ? past[((b * c.sizes.kv_heads + kv_head) * c.sizes.capacity + j) * d_count + d]
                                : fresh[((b * c.seq + j - old) * c.sizes.kv_heads + kv_head) * d_count + d];
    return static_cast<double>(c.options.half ? rounded(value) : value);
  };
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t j = first; j <= position; ++j) {
    double s = 0;
    for (size_t d = 0; d < d_count; ++d) {
      s += c.query[((b * c.seq + i) * c.sizes.heads + head) * d_count + d] * cached(c.past_key, c.key, j, d);
    }
    s *= 0.25;
    if (c.options.softcap != 0) s = std::tanh(s / c.options.softcap) * c.options.softcap;
    if (c.options.alibi) s += c.slopes[head] * (static_cast<double>(j) - static_cast<double>(position));
    weights.push_back(s);
    largest = std::max(largest, s);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  std::vector<double> row(d_count);
  for (size_t j = first; j <= position; ++j) {
    for (size_t d = 0; d < d_count; ++d) row[d] += weights[j - first] / sum * cached(c.past_value, c.value, j, d);
  }
  return row;
}

}  // namespace mxspec::test
