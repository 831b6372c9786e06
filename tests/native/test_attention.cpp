// The attention kernels of every instruction set here: against float64, and bit for bit against each other and against
// the same rows in other company. Arrays have their exact size, so that the address sanitizer sees what lies beyond.
#include <numeric>
#include <string>

#include "tests/native/attention_case.h"
#include "tests/native/check.h"

namespace {

using namespace mxspec::test;
using mxspec::AttentionCall;
using mxspec::AttentionMode;
using mxspec::AttentionSequence;
using mxspec::CacheKind;
using mxspec::Isa;
using mxspec::ThreadPool;

void check_values(const AttentionCase& c, const AttentionResult& result, const std::string& name) {
  const size_t d_count = c.sizes.head_size;
  for (const AttentionSequence& of : c.sequences) {
    for (size_t i = 0; i < of.count; ++i) {
      for (size_t head = 0; head < c.sizes.heads; ++head) {
        const float* got = result.output.data() + ((of.first + i) * c.sizes.heads + head) * d_count;
        const std::vector<double> expected = expected_row(c, of, i, head);
        double error = 0;
        for (size_t d = 0; d < d_count; ++d) {
          const double difference = std::abs(got[d] - expected[d]);
          error = difference <= error ? error : difference;  // a NaN stays
        }
        CHECK(error < (c.options.kind == CacheKind::kMxInt8 ? 2e-3 : 5e-5))
            << name << "slot" << of.slot << "row" << i << head << "off by" << error;
      }
    }
  }
}

// The new keys and values stand in their slots, where the mode is to write them, and nothing else changed.
void check_cache(const AttentionCase& c, const AttentionResult& result, const std::string& name) {
  const size_t d_count = c.sizes.head_size;
  std::vector<float> keys = c.past_key, values = c.past_value;
  for (const AttentionSequence& of : c.sequences) {
    if (c.options.mode == AttentionMode::kStored) break;
    for (size_t i = 0; i < of.count * c.sizes.kv_heads; ++i) {
      const size_t head = i % c.sizes.kv_heads, position = of.past + i / c.sizes.kv_heads;
      const size_t to = c.entry(of, head, position);
      const size_t from = (of.first * c.sizes.kv_heads + i) * d_count;
      const std::vector<float> key = stored_key(c.options.kind, {c.key.begin() + from, c.key.begin() + from + d_count});
      std::copy(key.begin(), key.end(), keys.begin() + to);
      std::copy_n(c.value.begin() + from, d_count, values.begin() + to);
    }
  }
  const auto check_entries = [&](const std::vector<float>& got, const std::vector<float>& stored, const char* which) {
    for (size_t at = 0; at < stored.size(); at += d_count) {
      const std::vector<float> expected = rounded(c.options.kind, {stored.begin() + at, stored.begin() + at + d_count});
      for (size_t d = 0; d < d_count; ++d) {
        CHECK(got[at + d] == expected[d] || (std::isnan(got[at + d]) && std::isnan(expected[d])))
            << name << which << "cache at" << at + d;
      }
    }
  };
  check_entries(result.key_cache, keys, "key");
  check_entries(result.value_cache, values, "value");
}

// The rows first..first + count - 1 of an array of rows.
std::vector<float> rows_of(const std::vector<float>& all, size_t row, size_t first, size_t count) {
  return {all.begin() + first * row, all.begin() + (first + count) * row};
}

// New tokens of one sequence alone, on the cache that those before them left: a cache of one slot. Sequences that see
// their own tokens are given whole.
AttentionCase part_of(const AttentionCase& c, const AttentionSequence& of, size_t first, size_t count,
                      const std::vector<float>& key_cache, const std::vector<float>& value_cache) {
  const size_t query_row = c.sizes.heads * c.sizes.head_size, key_row = c.sizes.kv_heads * c.sizes.head_size;
  AttentionCase part = c;
  const bool causal = c.options.mode == AttentionMode::kCausal;
  part.sequences = {{0, causal ? of.past + first : of.past, 0, count}};
  part.query = rows_of(c.query, query_row, of.first + first, count);
  part.key = rows_of(c.key, key_row, of.first + first, count);
  part.value = rows_of(c.value, key_row, of.first + first, count);
  part.past_key = key_cache;
  part.past_value = value_cache;
  return part;
}

// The tokens of a sequence, `chunk` at a time and with no company, give the bits that they gave in the whole call.
void check_chunks(const AttentionCase& c, const AttentionResult& whole, const AttentionSequence& of, size_t chunk,
                  Isa isa, ThreadPool& pool) {
  const size_t row = c.sizes.heads * c.sizes.head_size;
  AttentionResult before{
      {}, rows_of(c.past_key, c.slot_values(), of.slot, 1), rows_of(c.past_value, c.slot_values(), of.slot, 1)};
  for (size_t first = 0; first < of.count; first += chunk) {
    const size_t count = std::min(chunk, of.count - first);
    before = run(part_of(c, of, first, count, before.key_cache, before.value_cache), isa, pool);
    CHECK(same_bits(before.output, rows_of(whole.output, row, of.first + first, count)))
        << isa_name(isa) << "slot" << of.slot << "rows from" << first << "in chunks of" << chunk;
  }
}

// A sequence that sees its own tokens has the bits that it has alone.
void check_alone(const AttentionCase& c, const AttentionResult& whole, const AttentionSequence& of, Isa isa,
                 ThreadPool& pool) {
  const std::vector<float> empty(of.count * c.sizes.kv_heads * c.sizes.head_size, kNan);
  AttentionCase alone = part_of(c, of, 0, of.count, empty, empty);
  alone.sizes.capacity = of.count;
  CHECK(same_bits(run(alone, isa, pool).output,
                  rows_of(whole.output, c.sizes.heads * c.sizes.head_size, of.first, of.count)))
      << isa_name(isa) << "tokens from" << of.first << "alone";
}

// Under a sanitizer or an emulator all of it would take minutes. There scalar lanes, whose every fused multiply-add is
// a call, only give the reference, and heads are no larger than it takes to fill a vector and leave a rest.
#ifdef MXSPEC_SLOW
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif
constexpr size_t kLargeHead = kSlow ? 20 : 64;
constexpr unsigned kCompanies = kSlow ? 1 : 4;

bool tried(Isa isa) { return isa_available(isa) && !(kSlow && isa == Isa::kScalar); }

void check(const AttentionCase& c, const std::string& name, ThreadPool& one, ThreadPool& three) {
  const AttentionResult reference = run(c, Isa::kScalar, one);
  check_values(c, reference, name);
  check_cache(c, reference, name);
  for (const Isa isa : mxspec::kAllIsas) {
    if (!tried(isa)) continue;
    CHECK(run(c, isa, one) == reference) << name << isa_name(isa) << "differs from scalar";
    CHECK(run(c, isa, three) == reference) << name << isa_name(isa) << "differs with three threads";
    for (const AttentionSequence& of : c.sequences) {
      if (c.options.mode == AttentionMode::kOwn) {
        check_alone(c, reference, of, isa, one);
        check_alone(c, reference, of, isa, three);
      } else {
        check_chunks(c, reference, of, 1, isa, three);
        check_chunks(c, reference, of, 7, isa, one);
      }
    }
  }
}

// Texts in slots of one cache, read in calls that mix prompt chunks, single tokens and K+1 rows of some of them in any
// order, with tokens that are rolled back and read again: each row has the bits of its text read alone, at once.
void random_companies(const AttentionSizes& sizes, const AttentionOptions& options, unsigned seed, Isa isa,
                      ThreadPool& pool) {
  constexpr size_t kSlots = 6, kTexts = 5;
  std::mt19937 random(seed);
  const auto below = [&](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  std::vector<size_t> slots(kSlots), order(kTexts), done(kTexts);
  std::iota(slots.begin(), slots.end(), 0);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(slots.begin(), slots.end(), random);
  std::vector<Part> parts;
  for (size_t text = 0; text < kTexts; ++text) parts.push_back({slots[text], 0, sizes.capacity - below(40)});
  const AttentionCase texts(sizes, options, kSlots, parts, seed);
  const AttentionResult whole = run(texts, Isa::kScalar, pool);
  for (const AttentionSequence& of : texts.sequences) check_chunks(texts, whole, of, of.count, isa, pool);

  const size_t query_row = sizes.heads * sizes.head_size, key_row = sizes.kv_heads * sizes.head_size;
  AttentionCase call = texts;
  AttentionResult result{{}, texts.past_key, texts.past_value};
  const auto left = [&](size_t text) { return parts[text].count - done[text]; };
  while (std::any_of(order.begin(), order.end(), [&](size_t text) { return left(text) > 0; })) {
    std::shuffle(order.begin(), order.end(), random);
    for (auto* rows : {&call.query, &call.key, &call.value}) rows->clear();
    call.sequences.clear();
    call.past_key = result.key_cache;
    call.past_value = result.value_cache;
    const size_t company = 1 + below(kTexts);
    size_t tokens = 0;
    for (const size_t text : order) {
      const size_t wanted[] = {1, 2 + below(8), 40 + below(60)};
      const size_t count = std::min(wanted[below(3)], left(text));
      if (count == 0 || call.sequences.size() == company) continue;
      call.sequences.push_back({parts[text].slot, done[text], tokens, count});
      const size_t from = texts.sequences[text].first + done[text];
      const auto append = [&](std::vector<float>& to, const std::vector<float>& all, size_t row) {
        to.insert(to.end(), all.begin() + from * row, all.begin() + (from + count) * row);
      };
      append(call.query, texts.query, query_row);
      append(call.key, texts.key, key_row);
      append(call.value, texts.value, key_row);
      tokens += count;
    }
    result = run(call, isa, pool);
    for (const AttentionSequence& of : call.sequences) {
      const size_t text = std::find(slots.begin(), slots.end(), of.slot) - slots.begin();
      CHECK(same_bits(rows_of(result.output, query_row, of.first, of.count),
                      rows_of(whole.output, query_row, texts.sequences[text].first + of.past, of.count)))
          << isa_name(isa) << "slot" << of.slot << "tokens" << of.past << "and" << of.count << "more";
      done[text] += of.count;
      if (left(text) > 0) done[text] -= below(std::min<size_t>(of.count, 3));
    }
  }
  CHECK(same_bits(result.key_cache, whole.key_cache)) << isa_name(isa);
  CHECK(same_bits(result.value_cache, whole.value_cache)) << isa_name(isa);
}

// Rows of texts over entries that were stored before, in calls of any of them in any order: the bits of all in one.
void random_companies_over_stored(const AttentionSizes& sizes, const AttentionOptions& options, unsigned seed, Isa isa,
                                  ThreadPool& pool) {
  constexpr size_t kTexts = 5, kRows = 70;
  std::mt19937 random(seed);
  const auto below = [&](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  std::vector<Part> parts;
  for (size_t text = 0; text < kTexts; ++text) parts.push_back({text, 1 + below(sizes.capacity), kRows});
  const AttentionCase texts(sizes, options, kTexts, parts, seed);
  const std::vector<float> whole = run(texts, isa, pool).output;
  const size_t row = sizes.heads * sizes.head_size;
  std::vector<AttentionSequence> order = texts.sequences;
  for (size_t calls = 0; calls < 12; ++calls) {
    std::shuffle(order.begin(), order.end(), random);
    AttentionCase call = texts;
    call.sequences.clear();
    call.query.clear();
    std::vector<float> expected;
    for (size_t i = 0; i <= below(kTexts); ++i) {
      const size_t wanted[] = {1, 2 + below(8), 40 + below(30)};
      const size_t count = wanted[below(3)], from = order[i].first + below(kRows - count + 1);
      call.sequences.push_back({order[i].slot, order[i].past, call.query.size() / row, count});
      const std::vector<float> query = rows_of(texts.query, row, from, count), rows = rows_of(whole, row, from, count);
      call.query.insert(call.query.end(), query.begin(), query.end());
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    CHECK(same_bits(run(call, isa, pool).output, expected)) << isa_name(isa) << "call" << calls;
  }
}

// Keys and values alone, as they are stored for later calls.
void check_store(const AttentionCase& c, Isa isa, ThreadPool& pool) {
  const AttentionResult stored = run_with(c, [&](AttentionCall call) {
    call.query = nullptr;
    call.output = nullptr;
    call.heads = 0;
    store_keys_and_values(call, isa, pool_of(pool));
  });
  check_cache(c, stored, std::string("stored by ") + isa_name(isa));
}

// Where a window has passed, NaN in the cache does not matter any more; where it has not, it does.
void passed_keys_do_not_leak(CacheKind kind, Isa isa, ThreadPool& pool) {
  AttentionCase c({2, 1, 32, 200}, {.window = 20, .kind = kind}, 1, {{0, 150, 4}}, 5);
  const AttentionResult clean = run(c, isa, pool);
  for (size_t i = 0; i < 131 * 32; ++i) c.past_key[i] = c.past_value[i] = std::numeric_limits<float>::quiet_NaN();
  CHECK(run(c, isa, pool).output == clean.output) << isa_name(isa);  // row 0, at position 150, sees 131 and later
  c.past_value[131 * 32] = std::numeric_limits<float>::quiet_NaN();
  const AttentionResult spoilt = run(c, isa, pool);
  CHECK(std::isnan(spoilt.output[0])) << isa_name(isa);
  CHECK(std::equal(spoilt.output.begin() + 64, spoilt.output.end(), clean.output.begin() + 64)) << isa_name(isa);
}

// A ring gives the bits of a cache that holds all, before it is full, amid a lap, and where a call begins the next; and
// holds the latest entries after the call. What it lacks is NaN, of the entries outside the windows too.
void rings(CacheKind kind, size_t window, Isa isa, ThreadPool& pool) {
  const size_t head_size = kind == CacheKind::kMxInt8 ? 32 : 4, longest = 129;
  const size_t ring = (window + longest - 1 + 127) / 128 * 128;
  for (const size_t past : {size_t{0}, ring - 5, ring, 2 * ring - 1, 3 * ring + 77}) {
    for (const size_t count : {size_t{1}, size_t{2}, size_t{9}, longest}) {
      const size_t room = 4 * ring + longest;
      const std::vector<Part> parts = {{2, past, count}, {0, past / 2 + 3, 5}, {1, 0, 1}};
      const AttentionCase c({4, 2, head_size, room}, {.window = window, .sinks = window == 8, .kind = kind}, 3, parts,
                            9);
      const AttentionCase in = in_ring(c, ring);
      CHECK(mxspec::has_room(ring, window, past, count));
      const AttentionResult whole = run(c, isa, pool), result = run(in, isa, pool);
      CHECK(same_bits(result.output, whole.output)) << isa_name(isa) << "window" << window << "past" << past << count;
      AttentionCase after = c;
      after.past_key = whole.key_cache;
      after.past_value = whole.value_cache;
      for (AttentionSequence& of : after.sequences) of.past += of.count;
      const AttentionCase expected = in_ring(after, ring);
      const auto holds = [](const std::vector<float>& got, const std::vector<float>& wanted) {
        return std::equal(got.begin(), got.end(), wanted.begin(), wanted.end(),
                          [](float value, float latest) { return value == latest || std::isnan(latest); });
      };
      CHECK(holds(result.key_cache, expected.past_key) && holds(result.value_cache, expected.past_value))
          << isa_name(isa) << "window" << window << "past" << past << count;
    }
  }
}

// Which caches have room for a call.
void room_of_rings() {
  using mxspec::has_room;
  CHECK(has_room(10, 0, 7, 3) && !has_room(10, 0, 8, 3) && has_room(10, 4, 7, 3));
  CHECK(!has_room(10, 4, 8, 3) && !has_room(0, 0, 0, 1) && !has_room(0, 1, 0, 1));  // no whole spans, no entry
  CHECK(has_room(128, 120, 500, 9) && !has_room(128, 120, 500, 10) && !has_room(128, 120, 0, 129));
  CHECK(!has_room(128, 0, 500, 1));
}

// Numbers next to nothing, and none: integers have no scale for them.
void tiny_values(Isa isa, ThreadPool& pool) {
  AttentionCase c({2, 1, 32, 300}, {.kind = CacheKind::kMxInt8}, 1, {{0, 290, 3}}, 7);
  for (const float factor : {1e-30f, 1e-36f, 0.0f}) {
    for (auto* values : {&c.past_value, &c.value}) {
      for (float& value : *values) value = std::isnan(value) ? value : std::copysign(factor, value);
    }
    const AttentionResult result = run(c, isa, pool);
    check_values(c, result, "tiny values");
    CHECK(result == run(c, Isa::kScalar, pool)) << isa_name(isa) << "tiny values";
  }
  for (float& value : c.query) value = 0;
  check_values(c, run(c, isa, pool), "no query");
}

// Scores of any size: one key takes all, and none overflows.
void large_scores(Isa isa, ThreadPool& pool) {
  AttentionCase c({1, 1, 4, 300}, {.kind = CacheKind::kFloat32}, 1, {{0, 290, 1}}, 6);
  for (float& value : c.query) value *= 1e4f;
  const AttentionResult result = run(c, isa, pool);
  check_values(c, result, "large scores");
}

}  // namespace

int main() {
  ThreadPool one(1), three(3);
  room_of_rings();
  unsigned seed = 1;
  // Head sizes below, at and beside multiples of 16; tiles that fill and that do not; spans 1 to 3; uneven groups.
  const AttentionSizes all_sizes[] = {
      {4, 2, 16, 90},           {6, 2, 20, 300}, {3, 1, 4, 280}, {7, 7, kLargeHead + 8, 150},
      {10, 1, kLargeHead, 330}, {4, 2, 18, 140}, {3, 3, 2, 90}};
  const AttentionOptions all_options[] = {{},
                                          {.kind = CacheKind::kFloat32},
                                          {.softcap = 3},
                                          {.window = 30},
                                          {.alibi = true},
                                          {2.5f, 140, true, true, CacheKind::kFloat32, 50, -70},
                                          {.sinks = true},
                                          {.distances = 33, .first_distance = -30}};
  const AttentionOptions other_modes[] = {
      {.kind = CacheKind::kFloat32, .mode = AttentionMode::kOwn},
      {.softcap = 3, .kind = CacheKind::kFloat32, .distances = 41, .first_distance = -20, .mode = AttentionMode::kOwn},
      {.mode = AttentionMode::kStored},
      {.softcap = 3, .kind = CacheKind::kFloat32, .mode = AttentionMode::kStored}};
  for (const AttentionSizes& sizes : all_sizes) {
    const size_t room = sizes.capacity;
    for (const AttentionOptions& options : all_options) {
      const std::string name = "heads " + std::to_string(sizes.heads) + "/" + std::to_string(sizes.kv_heads) + " of " +
                               std::to_string(sizes.head_size) + " softcap " + std::to_string(options.softcap) +
                               " window " + std::to_string(options.window);
      const std::vector<Part> parts = {{2, room - 9, 9}, {0, 0, 5}, {3, room / 2, 1}};
      check(AttentionCase(sizes, options, 4, parts, ++seed), name, one, three);
    }
    check(AttentionCase(sizes, {}, 1, {{0, 3, 70}}, ++seed), "prompt", one, three);
    for (const AttentionOptions& options : other_modes) {
      if (kSlow && sizes.heads > 4) break;
      const bool own = options.mode == AttentionMode::kOwn;
      AttentionSizes of_mode = sizes;
      if (own) of_mode.capacity = 9 + 1 + 131;  // the tokens of the call
      const std::vector<Part> parts = own ? std::vector<Part>{{0, 0, 9}, {0, 0, 1}, {0, 0, 131}}
                                          : std::vector<Part>{{2, room, 9}, {0, 1, 2}, {1, room / 2, 20}};
      check(AttentionCase(of_mode, options, own ? 1 : 3, parts, ++seed), own ? "own tokens" : "stored", one, three);
    }
  }
  // Heads of one block, of two, of a wide pack and a half one.
  const AttentionSizes block_sizes[] = {
      {4, 2, 32, 170}, {10, 1, 64, 140}, {3, 1, kSlow ? 32 : 96, 150}, {7, 7, kSlow ? 32 : 128, 135}};
  for (const AttentionSizes& sizes : block_sizes) {
    const size_t room = sizes.capacity;
    for (AttentionOptions options : all_options) {
      if (++seed % 2 == 0 && sizes.heads != 4) continue;
      options.kind = CacheKind::kMxInt8;
      const std::vector<Part> parts = {{2, room - 9, 9}, {0, 0, 5}, {3, room / 2, 1}};
      check(AttentionCase(sizes, options, 4, parts, ++seed), "mxint8", one, three);
    }
    const AttentionOptions plain = {.kind = CacheKind::kMxInt8};
    check(AttentionCase(sizes, plain, 1, {{0, 3, 70}}, ++seed), "mxint8 prompt", one, three);
    const AttentionOptions stored = {.softcap = 3, .kind = CacheKind::kMxInt8, .mode = AttentionMode::kStored};
    check(AttentionCase(sizes, stored, 3, {{2, room, 9}, {0, 1, 2}, {1, room / 2, 20}}, ++seed), "mxint8 stored", one,
          three);
  }
  for (const Isa isa : mxspec::kAllIsas) {
    if (!tried(isa)) continue;
    passed_keys_do_not_leak(CacheKind::kFloat16, isa, three);
    passed_keys_do_not_leak(CacheKind::kMxInt8, isa, three);
    large_scores(isa, one);
    tiny_values(isa, one);
    for (const CacheKind kind : {CacheKind::kFloat16, CacheKind::kFloat32, CacheKind::kMxInt8}) {
      for (const size_t window : {8, 1, 128, 140}) {
        rings(kind, window, isa, three);
        if (kSlow) break;
      }
    }
    for (const CacheKind kind : {CacheKind::kFloat16, CacheKind::kFloat32, CacheKind::kMxInt8}) {
      const AttentionOptions options = {.kind = kind};
      const size_t head_size = kind == CacheKind::kMxInt8 ? 32 : 20;
      check_store(AttentionCase({0, 3, head_size, 90}, options, 3, {{2, 0, 70}, {0, 0, 1}, {1, 0, 90}}, ++seed), isa,
                  three);
      check_store(AttentionCase({0, 1, 64, 9}, options, 2, {{1, 0, 9}}, ++seed), isa, one);
    }
    random_companies_over_stored({6, 2, 20, 300}, other_modes[2], ++seed, isa, one);
    random_companies_over_stored({10, 1, kLargeHead, 170}, other_modes[3], ++seed, isa, three);
    for (unsigned i = 0; i < kCompanies; ++i) {
      random_companies({6, 2, 20, 200}, all_options[i], ++seed, isa, i % 2 ? one : three);
      random_companies({10, 1, kLargeHead, 170}, all_options[7 - i], ++seed, isa, i % 2 ? three : one);
      AttentionOptions options = all_options[i * 2];
      options.kind = CacheKind::kMxInt8;
      random_companies({6, 2, 64, 200}, options, ++seed, isa, i % 2 ? one : three);
    }
  }
  return mxspec::test::check_result();
}
