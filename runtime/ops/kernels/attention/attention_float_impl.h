// Attention over caches of float32 or float16, over any of the lanes (lanes_*.h).
#pragma once

#include "runtime/ops/kernels/attention/attention_span_impl.h"

namespace mxspec {
namespace {

// In the place of Ahead, where there is time enough to read what comes next when it comes.
struct NotAhead {
  void fetch() {}
};

template <class L, class Cache>
struct FloatAttention : AttentionSpan<L> {
  using Span = AttentionSpan<L>;
  using V = typename L::Vector;
  using Span::call, Span::tile, Span::head_size, Span::seen, Span::seen_by_any;
  static_assert(Span::kVectorsOfSpan % L::kWide == 0);
  // Tiles of at least so many rows are bound by multiply-adds: nothing is fetched between these, and values are
  // converted once for all rows.
  static constexpr size_t kManyRows = 16;

  Ahead ahead = {call.query, 0};

  using Span::Span;

  // Of the span that begins at this position.
  const Cache* keys(size_t start) const {
    return static_cast<const Cache*>(call.key_cache) + entry_of(call, tile.first_entry, start) * head_size;
  }
  const Cache* values(size_t start) const {
    return static_cast<const Cache*>(call.value_cache) + entry_of(call, tile.first_entry, start) * head_size;
  }

  static void store(const AttentionCall& call, const AttentionSequence& sequence, size_t kv_head) {
    const float* const from[] = {call.key, call.value};
    void* const to[] = {call.key_cache, call.value_cache};
    for (size_t which = 0; which < 2; ++which) {
      for (size_t i = 0; i < sequence.count; ++i) {
        const size_t entry = entry_of(call, first_entry(call, sequence, kv_head), sequence.past + i);
        Cache* const cache = static_cast<Cache*>(to[which]) + entry * call.head_size;
        const float* const row = from[which] + ((sequence.first + i) * call.kv_heads + kv_head) * call.head_size;
        for (size_t d = 0; d < call.head_size; d += 16) {
          const size_t values = call.head_size - d < 16 ? call.head_size - d : 16;
          L::store(cache + d, L::load(row + d, values), values);
        }
      }
    }
  }

  // Keys to [16-key vector][head_size][16]. A vector that reaches past the range repeats its last key.
  void load_keys(size_t start, KeyRange range, float* block) {
    const Cache* const from = keys(start);
    const size_t lines = 16 * head_size * sizeof(Cache) / 64;
    for (size_t v = range.first / 16; v * 16 < range.last; ++v) {
      for (size_t i = 0; i < lines; ++i) ahead.fetch();
      const Cache* rows[16];
      for (size_t j = 0; j < 16; ++j) {
        const size_t key = v * 16 + j;
        rows[j] = from + (key < range.first ? range.first : key < range.last ? key : range.last - 1) * head_size;
      }
      L::transpose(rows, head_size, block + v * head_size * 16);
    }
  }

  // scores[r][16 v ...] = scale * (query_r . key), one chain of fused multiply-adds in the order of the head's entries.
  // Not inlined, as add_products: all that their inner loops use then has registers.
  template <size_t kRows, size_t kVectors, class Fetch>
  MXSPEC_NOINLINE void score_tile(size_t first_row, size_t v, AttentionScratch scratch, Fetch& fetch) const {
    const float* queries[kRows];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) queries[r] = tile.rows[first_row + r].query;
    const float* const keys = scratch.block + v * head_size * 16;
    V sums[kRows][kVectors];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[r][i] = L::zero();
    }
    Fetch fetching = fetch;
    for (size_t d = 0; d < head_size; ++d) {
      fetching.fetch();
      V key[kVectors];
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) key[i] = L::load(keys + (i * head_size + d) * 16);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const V query = L::set1(queries[r][d]);
        MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[r][i] = L::fma(query, key[i], sums[r][i]);
      }
    }
    fetch = fetching;
    const V scale = L::set1(call.scale);
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      float* const scores = scratch.scores + (first_row + r) * kSpanKeys + v * 16;
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) L::store(scores + i * 16, L::mul(sums[r][i], scale));
    }
  }

  template <size_t kRows, class Fetch>
  void score_rows(size_t first_row, size_t start, AttentionScratch scratch, Fetch& fetch) const {
    const KeyRange range = seen_by_any(first_row, kRows, start);
    // Nothing beyond the range is multiplied: old contents may be denormal, and take a hundred times as long.
    const size_t end = (range.last + 15) / 16;
    size_t v = range.first / 16;
    for (; v + L::kWide <= end; v += L::kWide) score_tile<kRows, L::kWide>(first_row, v, scratch, fetch);
    Span::rest(end - v, [&]<size_t kVectors>() { score_tile<kRows, kVectors>(first_row, v, scratch, fetch); });
  }

  template <class T>
  static V value_at(const T* value, size_t i, size_t count) {
    return count == 0 ? L::load(value + i * 16) : L::load(value, count);
  }

  // The keys from..to-1, which some of the rows see.
  template <size_t kRows, size_t kVectors, class T>
  void weigh_edge(V (&sums)[kRows][kVectors], const KeyRange* ranges, size_t from, size_t to, const float* scores,
                  const T* values, size_t count) const {
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      const size_t first = from > ranges[r].first ? from : ranges[r].first;
      const size_t last = to < ranges[r].last ? to : ranges[r].last;
      for (size_t key = first; key < last; ++key) {
        const V p = L::set1(scores[r * kSpanKeys + key]);
        MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) {
          sums[r][i] = L::fma(p, value_at(values + key * head_size, i, count), sums[r][i]);
        }
      }
    }
  }

  // sums[r] += p_j v_j of `keys` keys that all rows see.
  template <size_t kRows, size_t kVectors, bool kTail, class T, class Fetch>
  MXSPEC_NOINLINE void add_products(V (&sums)[kRows][kVectors], const float* p, size_t keys, const T* value,
                                    size_t count, Fetch& fetch) const {
    V own[kRows][kVectors];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) own[r][i] = sums[r][i];
    }
    Fetch fetching = fetch;
    const size_t size = head_size;
    for (const float* const end = p + keys; p < end; ++p, value += size) {
      fetching.fetch();
      V values[kVectors];
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) values[i] = value_at(value, i, kTail ? count : 0);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const V weight = L::set1(p[r * kSpanKeys]);
        MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) own[r][i] = L::fma(weight, values[i], own[r][i]);
      }
    }
    fetch = fetching;
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[r][i] = own[r][i];
    }
  }

  // values[r][d...] merged with sum over keys of p_j v_j: one chain of fused multiply-adds in the order of the keys. A
  // key that a row does not see is left out, not multiplied by zero: its value may be NaN. `of_span` are the span's
  // values [key][head_size].
  template <size_t kRows, size_t kVectors, bool kTail = false, class T, class Fetch>
  void weigh_tile(size_t first_row, size_t start, size_t d, const T* of_span, AttentionState state,
                  AttentionScratch scratch, Fetch& fetch) const {
    // The rows' ranges, their union, and what all of them see.
    KeyRange ranges[kRows];
    size_t first = kSpanKeys, last = 0, common_first = 0, common_last = kSpanKeys;
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      const KeyRange range = ranges[r] = seen(tile.rows[first_row + r], start);
      common_first = range.first > common_first ? range.first : common_first;
      common_last = range.last < common_last ? range.last : common_last;
      if (range.first >= range.last) continue;
      first = range.first < first ? range.first : first;
      last = range.last > last ? range.last : last;
    }
    if (common_first >= common_last) common_first = common_last = last;
    V sums[kRows][kVectors];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[r][i] = L::zero();
    }
    const float* const scores = scratch.scores + first_row * kSpanKeys;
    const size_t size = head_size, count = kTail ? size - d : 0;
    const T* const span_values = of_span + d;
    weigh_edge(sums, ranges, first, common_first, scores, span_values, count);
    add_products<kRows, kVectors, kTail>(sums, scores + common_first, common_last - common_first,
                                         span_values + common_first * size, count, fetch);
    weigh_edge(sums, ranges, common_last, last, scores, span_values, count);
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      if (ranges[r].first >= ranges[r].last) continue;
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) {
        Span::take_values(first_row + r, start, d + i * 16, sums[r][i], state, scratch);
      }
    }
  }

  template <size_t kRows, class T, class Fetch>
  void weigh_rows(size_t first_row, size_t start, const T* of_span, AttentionState state, AttentionScratch scratch,
                  Fetch& fetch) const {
    size_t d = 0;
    for (; d + L::kWide * 16 <= head_size; d += L::kWide * 16) {
      weigh_tile<kRows, L::kWide>(first_row, start, d, of_span, state, scratch, fetch);
    }
    for (; d + 16 <= head_size; d += 16) weigh_tile<kRows, 1>(first_row, start, d, of_span, state, scratch, fetch);
    if (d < head_size) weigh_tile<kRows, 1, true>(first_row, start, d, of_span, state, scratch, fetch);
  }

  template <class Fetch>
  void score(size_t start, AttentionScratch scratch, Fetch& fetch) const {
    Span::by_register_rows([&]<size_t kRows>(size_t r) { score_rows<kRows>(r, start, scratch, fetch); });
  }

  template <class T, class Fetch>
  void weigh(size_t start, const T* of_span, AttentionState state, AttentionScratch scratch, Fetch& fetch) const {
    Span::by_register_rows(
        [&]<size_t kRows>(size_t r) { weigh_rows<kRows>(r, start, of_span, state, scratch, fetch); });
  }

  // The values of a span as float32, in the place of its keys.
  const float* widened(const Cache* of_span, KeyRange range, float* block) const {
    if constexpr (sizeof(Cache) == sizeof(float)) return of_span;
    const size_t end = range.last * head_size;
    size_t i = range.first * head_size;
    for (; i + 16 <= end; i += 16) L::store(block + i, L::load(of_span + i));
    if (i < end) L::store(block + i, L::load(of_span + i, end - i), end - i);
    return block;
  }

  void span(size_t start, AttentionState state, AttentionScratch scratch) {
    const KeyRange range = seen_by_any(0, tile.row_count, start);
    if (range.first >= range.last) return;
    const Cache* const of_span = values(start);
    const bool many = tile.row_count >= kManyRows;
    NotAhead nothing;
    ahead = {of_span + range.first * head_size, (range.last - range.first) * head_size};
    load_keys(start, range, scratch.block);
    const size_t next = start + kSpanKeys, end = tile.rows[tile.row_count - 1].end_key;
    if (next < end) ahead = {keys(next), (end - next < kSpanKeys ? end - next : kSpanKeys) * head_size};
    many ? score(start, scratch, nothing) : score(start, scratch, ahead);
    Span::softmax_rows(start, scratch);
    Span::merge_sums(start, scratch.largest, scratch.sum, state, scratch.keep, scratch.take);
    many ? weigh(start, widened(of_span, range, scratch.block), state, scratch, nothing)
         : weigh(start, of_span, state, scratch, ahead);
  }

  static void prepare(const AttentionCall&, const AttentionTile&, float*) {}

  static void attend(const AttentionCall& call, const AttentionTile& tile, size_t first, size_t last,
                     AttentionState state, AttentionScratch scratch) {
    FloatAttention self(call, tile, first * kSpanKeys);
    for (size_t i = first; i < last; ++i) self.span(i * kSpanKeys, state, scratch);
  }
};

}  // namespace
}  // namespace mxspec
