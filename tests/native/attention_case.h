// Sequences with random values in the slots of a cache, attention over them, and the same in float64 by definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "formats/native/codec.h"
#include "formats/native/half.h"
#include "formats/native/weight_formats.h"
#include "runtime/ops/kernels/attention/attention.h"
#include "tests/native/pool_of.h"

namespace mxspec::test {

struct AttentionOptions {
  float softcap = 0;
  size_t window = 0;
  bool alibi = false;
  bool sinks = false;
  CacheKind kind = CacheKind::kFloat16;
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

inline constexpr int kInt8Element = formats::element_number(formats::WeightFormat::kMxint8);
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

// Each block of 32 times the Hadamard matrix, whose entry i, j is -1 to the number of ones that i and j share.
template <class T>
std::vector<T> transformed(std::vector<T> entry) {
  for (size_t distance = kCacheBlock / 2; distance > 0; distance /= 2) {
    for (size_t i = 0; i < entry.size(); ++i) {
      if ((i & distance) != 0) continue;
      const T a = entry[i], b = entry[i + distance];
      entry[i] = a + b;
      entry[i + distance] = a - b;
    }
  }
  return entry;
}

// A new key as it is stored, before it is rounded. What past_key holds is of that kind already.
inline std::vector<float> stored_key(CacheKind kind, std::vector<float> key) {
  return kind == CacheKind::kMxInt8 ? transformed(std::move(key)) : key;
}

// An entry of head_size values as a cache of this kind gives it back. MXINT8 is the codec's.
inline std::vector<float> rounded(CacheKind kind, std::vector<float> entry) {
  if (kind == CacheKind::kFloat16) {
    for (float& value : entry) value = formats::half_to_float(formats::float_to_half(value));
  } else if (kind == CacheKind::kMxInt8) {
    const int64_t n = static_cast<int64_t>(entry.size());
    const mxspec_matrix matrix = {entry.data(), 1, n, n, MXSPEC_FLOAT32, 0};
    std::vector<uint8_t> codes(entry.size()), scales(entry.size() / kCacheBlock);
    if (mxspec_quantize(&matrix, kInt8Element, MXSPEC_EVEN, 1, codes.data(), scales.data()) != MXSPEC_OK ||
        mxspec_dequantize(codes.data(), scales.data(), 1, n, kInt8Element, entry.data()) != MXSPEC_OK) {
      throw std::runtime_error("the codec refuses an entry of a cache");
    }
  }
  return entry;
}

// A cache of one kind and of as many values as the case's, in the bytes that the kernels read.
class StoredCache {
 public:
  StoredCache(CacheKind kind, size_t head_size, const std::vector<float>& values)
      : kind_(kind), head_size_(head_size), bytes_(values.size() / head_size * entry_bytes(kind, head_size)) {
    for (size_t at = 0; at < values.size(); at += head_size) {
      const std::vector<float> entry(values.begin() + at, values.begin() + at + head_size);
      uint8_t* const to = entry_at(at);
      if (kind == CacheKind::kFloat32) {
        std::memcpy(to, entry.data(), head_size * sizeof(float));
      } else if (kind == CacheKind::kFloat16) {
        for (size_t d = 0; d < head_size; ++d) {
          const uint16_t half = formats::float_to_half(entry[d]);
          std::memcpy(to + d * sizeof half, &half, sizeof half);
        }
      } else {
        const int64_t n = static_cast<int64_t>(head_size);
        const mxspec_matrix matrix = {entry.data(), 1, n, n, MXSPEC_FLOAT32, 0};
        if (mxspec_quantize(&matrix, kInt8Element, MXSPEC_EVEN, 1, to, to + head_size) != MXSPEC_OK) {
          throw std::runtime_error("the codec refuses an entry of a cache");
        }
      }
    }
  }

  void* data() { return bytes_.data(); }

  std::vector<float> values() {
    std::vector<float> all(bytes_.size() / entry_bytes(kind_, head_size_) * head_size_);
    for (size_t at = 0; at < all.size(); at += head_size_) {
      const uint8_t* const from = entry_at(at);
      if (kind_ == CacheKind::kFloat32) {
        std::memcpy(&all[at], from, head_size_ * sizeof(float));
      } else if (kind_ == CacheKind::kFloat16) {
        for (size_t d = 0; d < head_size_; ++d) {
          uint16_t half;
          std::memcpy(&half, from + d * sizeof half, sizeof half);
          all[at + d] = formats::half_to_float(half);
        }
      } else if (mxspec_dequantize(from, from + head_size_, 1, static_cast<int64_t>(head_size_), kInt8Element,
                                   &all[at]) != MXSPEC_OK) {
        throw std::runtime_error("the codec refuses an entry of a cache");
      }
    }
    return all;
  }

 private:
  uint8_t* entry_at(size_t value) { return bytes_.data() + value / head_size_ * entry_bytes(kind_, head_size_); }

  CacheKind kind_;
  size_t head_size_;
  std::vector<uint8_t> bytes_;
};

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
  AttentionResult result{std::vector<float>(c.query.size(), 7), {}, {}};
  StoredCache key_cache(c.options.kind, c.sizes.head_size, c.past_key),
      value_cache(c.options.kind, c.sizes.head_size, c.past_value);
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
  call.kind = c.options.kind;
  call.key_cache = key_cache.data();
  call.value_cache = value_cache.data();
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
  result.key_cache = key_cache.values();
  result.value_cache = value_cache.values();
  return result;
}

// The case with a ring of `capacity` in place of its cache: of each past, what was not overwritten.
inline AttentionCase in_ring(const AttentionCase& c, size_t capacity) {
  AttentionCase ring = c;
  ring.sizes.capacity = capacity;
  ring.past_key.assign(c.past_key.size() / c.slot_values() * ring.slot_values(), kNan);
  ring.past_value = ring.past_key;
  for (const AttentionSequence& of : c.sequences) {
    for (size_t p = of.past > capacity ? of.past - capacity : 0; p < of.past; ++p) {
      for (size_t h = 0; h < c.sizes.kv_heads; ++h) {
        const size_t from = c.entry(of, h, p), to = ring.entry(of, h, p % capacity);
        std::copy_n(c.past_key.begin() + from, c.sizes.head_size, ring.past_key.begin() + to);
        std::copy_n(c.past_value.begin() + from, c.sizes.head_size, ring.past_value.begin() + to);
      }
    }
  }
  return ring;
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
  const auto entry_of = [&](const std::vector<float>& all, size_t at) {
    return std::vector<float>(all.begin() + at, all.begin() + at + d_count);
  };
  const auto fresh = [&](size_t j) { return ((of.first + j - of.past) * c.sizes.kv_heads + kv_head) * d_count; };
  const auto key_at = [&](size_t j) {
    return rounded(c.options.kind, j < of.past ? entry_of(c.past_key, c.entry(of, kv_head, j))
                                               : stored_key(c.options.kind, entry_of(c.key, fresh(j))));
  };
  const auto value_at = [&](size_t j) {
    return rounded(c.options.kind,
                   j < of.past ? entry_of(c.past_value, c.entry(of, kv_head, j)) : entry_of(c.value, fresh(j)));
  };
  const std::vector<float> given = entry_of(c.query, ((of.first + i) * c.sizes.heads + head) * d_count);
  std::vector<double> query(given.begin(), given.end());
  const bool transforms = c.options.kind == CacheKind::kMxInt8;
  if (transforms) query = transformed(query);
  std::vector<double> weights;
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t j = first; j < end; ++j) {
    double s = 0;
    const std::vector<float> key = key_at(j);
    for (size_t d = 0; d < d_count; ++d) s += query[d] * key[d];
    s *= transforms ? 0.25 / kCacheBlock : 0.25;
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
    const std::vector<float> value = value_at(j);
    for (size_t d = 0; d < d_count; ++d) row[d] += weights[j - first] / sum * value[d];
  }
  return row;
}

}  // namespace mxspec::test
