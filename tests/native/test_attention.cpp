// The attention kernels of every instruction set here: against float64, and bit for bit against each other and against
// the same rows in other company. Arrays have their exact size, so that the address sanitizer sees what lies beyond.
#include <string>

#include "tests/native/attention_case.h"
#include "tests/native/check.h"

namespace {

using namespace mxspec::test;
using mxspec::Isa;
using mxspec::ThreadPool;

void check_values(const AttentionCase& c, const AttentionResult& result, const std::string& name) {
  const size_t d_count = c.sizes.head_size;
  for (size_t b = 0; b < c.past.size(); ++b) {
    for (size_t i = 0; i < c.seq; ++i) {
      for (size_t head = 0; head < c.sizes.heads; ++head) {
        const float* got = result.output.data() + ((b * c.seq + i) * c.sizes.heads + head) * d_count;
        const bool padding = i >= static_cast<size_t>(c.fresh[b]);
        const std::vector<double> expected = padding ? std::vector<double>(d_count) : expected_row(c, b, i, head);
        double error = 0;
        for (size_t d = 0; d < d_count; ++d) {
          const double difference = std::abs(got[d] - expected[d]);
          error = difference <= error ? error : difference;  // a NaN stays
        }
        CHECK(padding ? error == 0 : error < 5e-5) << name << "row" << b << i << head << "off by" << error;
      }
    }
  }
}

void check_cache(const AttentionCase& c, const AttentionResult& result, const std::string& name) {
  const size_t d_count = c.sizes.head_size;
  for (size_t at = 0; at < result.key_cache.size(); ++at) {
    const size_t j = at / d_count % c.sizes.capacity, head = at / d_count / c.sizes.capacity % c.sizes.kv_heads;
    const size_t b = at / c.cache_of_one(), old = static_cast<size_t>(c.past[b]);
    const bool is_new = j >= old && j < old + static_cast<size_t>(c.fresh[b]);
    const size_t from = is_new ? ((b * c.seq + j - old) * c.sizes.kv_heads + head) * d_count + at % d_count : at;
    const auto holds = [&](float got, float expected) {
      expected = c.options.half ? rounded(expected) : expected;
      return got == expected || (std::isnan(got) && std::isnan(expected));
    };
    CHECK(holds(result.key_cache[at], (is_new ? c.key : c.past_key)[from])) << name << "key" << b << head << j;
    CHECK(holds(result.value_cache[at], (is_new ? c.value : c.past_value)[from])) << name << "value" << b << head << j;
  }
}

// New rows of sequence b alone, on the cache that the rows before them left behind.
AttentionCase part_of(const AttentionCase& c, size_t b, size_t first, size_t count, const std::vector<float>& key_cache,
                      const std::vector<float>& value_cache) {
  const auto rows = [&](const std::vector<float>& all, size_t heads) {
    const size_t row = heads * c.sizes.head_size, from = (b * c.seq + first) * row;
    return std::vector<float>(all.begin() + from, all.begin() + from + count * row);
  };
  AttentionCase part = c;
  part.past = {static_cast<int32_t>(c.past[b] + first)};
  part.fresh = {static_cast<int32_t>(count)};
  part.seq = count;
  part.query = rows(c.query, c.sizes.heads);
  part.key = rows(c.key, c.sizes.kv_heads);
  part.value = rows(c.value, c.sizes.kv_heads);
  part.past_key = key_cache;
  part.past_value = value_cache;
  return part;
}

// The rows of sequence b, `chunk` at a time and with no company, give the bits that they gave in the whole call.
void check_chunks(const AttentionCase& c, const AttentionResult& whole, size_t b, size_t chunk, Isa isa,
                  ThreadPool& pool) {
  const size_t fresh = static_cast<size_t>(c.fresh[b]), row = c.sizes.heads * c.sizes.head_size;
  const auto cache_of = [&](const std::vector<float>& all) {
    return std::vector<float>(all.begin() + b * c.cache_of_one(), all.begin() + (b + 1) * c.cache_of_one());
  };
  AttentionResult before{{}, cache_of(c.past_key), cache_of(c.past_value)};
  for (size_t first = 0; first < fresh; first += chunk) {
    const size_t count = std::min(chunk, fresh - first);
    before = run(part_of(c, b, first, count, before.key_cache, before.value_cache), isa, pool);
    const float* const expected = whole.output.data() + (b * c.seq + first) * row;
    CHECK(std::memcmp(before.output.data(), expected, count * row * sizeof(float)) == 0)
        << isa_name(isa) << "sequence" << b << "rows from" << first << "in chunks of" << chunk;
  }
}

void check(const AttentionCase& c, const std::string& name, ThreadPool& one, ThreadPool& three) {
  const AttentionResult reference = run(c, Isa::kScalar, one);
  check_values(c, reference, name);
  check_cache(c, reference, name);
  for (const Isa isa : mxspec::kAllIsas) {
    if (!isa_available(isa)) continue;
    CHECK(run(c, isa, one) == reference) << name << isa_name(isa) << "differs from scalar";
    CHECK(run(c, isa, three) == reference) << name << isa_name(isa) << "differs with three threads";
    for (size_t b = 0; b < c.past.size(); ++b) {
      check_chunks(c, reference, b, 1, isa, three);
      check_chunks(c, reference, b, 7, isa, one);
    }
  }
}

// Where a window has passed, NaN in the cache does not matter any more; where it has not, it does.
void passed_keys_do_not_leak(Isa isa, ThreadPool& pool) {
  AttentionCase c({2, 1, 16, 200}, {.window = 20}, {150}, {4}, 4, 5);
  const AttentionResult clean = run(c, isa, pool);
  for (size_t i = 0; i < 131 * 16; ++i) c.past_key[i] = c.past_value[i] = std::numeric_limits<float>::quiet_NaN();
  CHECK(run(c, isa, pool).output == clean.output) << isa_name(isa);  // row 0, at position 150, sees 131 and later
  c.past_value[131 * 16] = std::numeric_limits<float>::quiet_NaN();
  const AttentionResult spoilt = run(c, isa, pool);
  CHECK(std::isnan(spoilt.output[0])) << isa_name(isa);
  CHECK(std::equal(spoilt.output.begin() + 32, spoilt.output.end(), clean.output.begin() + 32)) << isa_name(isa);
}

// Scores of any size: one key takes all, and none overflows.
void large_scores(Isa isa, ThreadPool& pool) {
  AttentionCase c({1, 1, 4, 300}, {.half = false}, {290}, {1}, 1, 6);
  for (float& value : c.query) value *= 1e4f;
  const AttentionResult result = run(c, isa, pool);
  check_values(c, result, "large scores");
}

}  // namespace

int main() {
  ThreadPool one(1), three(3);
  unsigned seed = 1;
  // Head sizes below, at and beside multiples of 16; tiles that fill and that do not; spans 1 to 3; uneven groups.
  const AttentionSizes all_sizes[] = {
      {4, 2, 16, 90}, {6, 2, 20, 300}, {3, 1, 4, 280}, {7, 7, 72, 150}, {10, 1, 64, 330}};
  const AttentionOptions all_options[] = {
      {}, {.half = false}, {.softcap = 3}, {.window = 30}, {.alibi = true}, {2.5f, 140, true, false}};
  for (const AttentionSizes& sizes : all_sizes) {
    const auto room = static_cast<int32_t>(sizes.capacity);
    for (const AttentionOptions& options : all_options) {
      const std::string name = "heads " + std::to_string(sizes.heads) + "/" + std::to_string(sizes.kv_heads) + " of " +
                               std::to_string(sizes.head_size) + " softcap " + std::to_string(options.softcap) +
                               " window " + std::to_string(options.window);
      check(AttentionCase(sizes, options, {room - 9, 0, room / 2}, {9, 5, 0}, 9, ++seed), name + " ragged", one, three);
    }
    check(AttentionCase(sizes, {}, {3}, {70}, 70, ++seed), "prompt", one, three);
  }
  for (const Isa isa : mxspec::kAllIsas) {
    if (!isa_available(isa)) continue;
    passed_keys_do_not_leak(isa, three);
    large_scores(isa, one);
  }
  return mxspec::test::check_result();
}
