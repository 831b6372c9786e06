// The attention kernels over any of the lanes (lanes_*.h). Included by one file an instruction set.
#pragma once

#include "runtime/ops/kernels/attention_kernels.h"
#include "runtime/ops/kernels/compiler.h"
#include "runtime/ops/kernels/lanes_math.h"

namespace mxspec {
namespace {

// Keys of a span, counted from its first position, that a row (or any of several) sees. Empty where first >= last.
struct KeyRange {
  size_t first, last;
};

// Memory that the next step reads, asked for line by line between the multiply-adds of this one. Without it the memory
// idles while a span is computed: one row at 1,000 cached tokens, cold, took 137 us on one core, with it 78 us.
// It never goes past its end: a cache's unused pages are not mapped, and each fetch there would walk the page tables.
class Ahead {
 public:
  // `from` must be mapped even where the count is 0.
  template <class T>
  Ahead(const T* from, size_t count)
      : next_(reinterpret_cast<const char*>(from)),
        last_(count == 0 ? next_ : reinterpret_cast<const char*>(from + count) - 1) {}
  // A step of a loop asks for one line; a copy of this object lives in registers there.
  void fetch() {
    __builtin_prefetch(next_);
    next_ = last_ - next_ < 64 ? last_ : next_ + 64;
  }

 private:
  const char *next_, *last_;
};

template <class L, class Cache>
struct Attention {
  using V = typename L::Vector;
  static constexpr size_t kVectorsOfSpan = kSpanKeys / 16;
  static_assert(kVectorsOfSpan % L::kWide == 0);
  static constexpr size_t kRegisterRows = 4;

  const AttentionCall& call;
  const AttentionTile& tile;
  const size_t begin;  // the state holds nothing of the positions before this one
  const size_t head_size = call.head_size;
  const size_t padded = (call.head_size + 15) / 16 * 16;
  Ahead ahead = {call.query, 0};

  const Cache* keys() const { return static_cast<const Cache*>(call.key_cache) + tile.first_entry * head_size; }
  const Cache* values() const { return static_cast<const Cache*>(call.value_cache) + tile.first_entry * head_size; }

  static void store(const AttentionCall& call, const AttentionSequence& sequence, size_t kv_head) {
    const float* const from[] = {call.key, call.value};
    void* const to[] = {call.key_cache, call.value_cache};
    for (size_t which = 0; which < 2; ++which) {
      const size_t entry = first_entry(call, sequence, kv_head) + sequence.past;
      Cache* const cache = static_cast<Cache*>(to[which]) + entry * call.head_size;
      for (size_t i = 0; i < sequence.count; ++i) {
        const float* const row = from[which] + ((sequence.first + i) * call.kv_heads + kv_head) * call.head_size;
        for (size_t d = 0; d < call.head_size; d += 16) {
          const size_t values = call.head_size - d < 16 ? call.head_size - d : 16;
          L::store(cache + i * call.head_size + d, L::load(row + d, values), values);
        }
      }
    }
  }

  KeyRange seen(const AttentionRow& row, size_t start) const {
    const size_t end = row.end_key;
    return {row.first_key > start ? row.first_key - start : 0,
            end <= start ? 0 : (end - start < kSpanKeys ? end - start : kSpanKeys)};
  }

  KeyRange seen_by_any(size_t first_row, size_t count, size_t start) const {
    KeyRange all = {kSpanKeys, 0};
    for (size_t r = first_row; r < first_row + count; ++r) {
      const KeyRange range = seen(tile.rows[r], start);
      if (range.first >= range.last) continue;
      all = {range.first < all.first ? range.first : all.first, range.last > all.last ? range.last : all.last};
    }
    return all;
  }

  // Keys to [16-key vector][head_size][16]. A vector that reaches past the range repeats its last key.
  void load_keys(size_t start, KeyRange range, float* block) {
    const Cache* const from = keys() + start * head_size;
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
  template <size_t kRows, size_t kVectors>
  void score_tile(size_t first_row, size_t v, AttentionScratch scratch) {
    const float* queries[kRows];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) queries[r] = tile.rows[first_row + r].query;
    const float* const keys = scratch.block + v * head_size * 16;
    V sums[kRows][kVectors];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[r][i] = L::zero();
    }
    Ahead fetching = ahead;
    for (size_t d = 0; d < head_size; ++d) {
      fetching.fetch();
      V key[kVectors];
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) key[i] = L::load(keys + (i * head_size + d) * 16);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const V query = L::set1(queries[r][d]);
        MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[r][i] = L::fma(query, key[i], sums[r][i]);
      }
    }
    ahead = fetching;
    const V scale = L::set1(call.scale);
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      float* const scores = scratch.scores + (first_row + r) * kSpanKeys + v * 16;
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) L::store(scores + i * 16, L::mul(sums[r][i], scale));
    }
  }

  template <size_t kRows>
  void score_rows(size_t first_row, size_t start, AttentionScratch scratch) {
    const KeyRange range = seen_by_any(first_row, kRows, start);
    // Nothing beyond the range is multiplied: old contents may be denormal, and take a hundred times as long.
    const size_t end = (range.last + 15) / 16;
    size_t v = range.first / 16;
    for (; v + L::kWide <= end; v += L::kWide) score_tile<kRows, L::kWide>(first_row, v, scratch);
    rest(end - v, [&]<size_t kVectors>() { score_tile<kRows, kVectors>(first_row, v, scratch); });
  }

  // The biases of the sixteen keys from this position on.
  V distance_bias(const AttentionRow& row, size_t key) const {
    const int64_t last = static_cast<int64_t>(call.distances) - 1;
    const int64_t at = static_cast<int64_t>(key) - static_cast<int64_t>(row.position) - call.first_distance;
    if (at >= 0 && at + 15 <= last) return L::load(row.distance_bias + at);
    if (at + 15 <= 0) return L::set1(row.distance_bias[0]);  // most of a long text is far away
    if (at >= last) return L::set1(row.distance_bias[last]);
    float biases[16];
    for (int64_t j = 0; j < 16; ++j) {
      biases[j] = row.distance_bias[at + j < 0 ? 0 : at + j > last ? last : at + j];
    }
    return L::load(biases);
  }

  // The rarer steps from a scaled score to what the softmax takes: the cap, then the biases by distance.
  void adjust(size_t r, size_t start, KeyRange range, AttentionScratch scratch) const {
    const AttentionRow& row = tile.rows[r];
    float* const scores = scratch.scores + r * kSpanKeys;
    for (size_t v = range.first / 16; v * 16 < range.last; ++v) {
      V s = L::load(scores + v * 16);
      if (call.softcap != 0) s = L::mul(tanh<L>(L::div(s, L::set1(call.softcap))), L::set1(call.softcap));
      if (call.slopes != nullptr) {
        const float offset =
            static_cast<float>(static_cast<int64_t>(start + v * 16) - static_cast<int64_t>(row.position));
        s = L::add(s, L::mul(L::set1(row.slope), L::add(L::iota(), L::set1(offset))));
      }
      if (row.distance_bias != nullptr) s = L::add(s, distance_bias(row, start + v * 16));
      L::store(scores + v * 16, s);
    }
  }

  // Scores to exp(s - largest), zero where the row does not see the key; their largest and sum go to the span's state.
  // kWhole: the row sees all keys of the span, the common case, which needs no masks and stays in registers.
  template <bool kWhole>
  void softmax(size_t r, KeyRange range, AttentionScratch scratch) const {
    float* const scores = scratch.scores + r * kSpanKeys;
    const size_t begin_v = kWhole ? 0 : range.first / 16, end_v = kWhole ? kVectorsOfSpan : (range.last + 15) / 16;
    const auto visible = [&](size_t v, V seen, V hidden) {
      if constexpr (kWhole) return seen;
      const auto mask = L::range(range.first > v * 16 ? range.first - v * 16 : 0,
                                 range.last - v * 16 < 16 ? range.last - v * 16 : 16);
      return L::select(mask, seen, hidden);
    };
    const V lowest = L::set1(-std::numeric_limits<float>::infinity());
    V s[kVectorsOfSpan];
    V largest = lowest;
    for (size_t v = begin_v; v < end_v; ++v) {
      s[v] = visible(v, L::load(scores + v * 16), lowest);
      largest = L::max(largest, s[v]);
    }
    const float row_largest = L::largest(largest);
    V sums = L::zero();
    for (size_t v = begin_v; v < end_v; ++v) {
      const V p = visible(v, exp_negative<L>(L::sub(s[v], L::set1(row_largest))), L::zero());
      L::store(scores + v * 16, p);
      sums = L::add(sums, p);
    }
    scratch.largest[r] = row_largest;
    scratch.sum[r] = L::sum(sums);
  }

  void softmax_rows(size_t start, AttentionScratch scratch) const {
    const bool adjusted = call.softcap != 0 || call.slopes != nullptr || call.distance_bias != nullptr;
    for (size_t r = 0; r < tile.row_count; ++r) {
      const KeyRange range = seen(tile.rows[r], start);
      if (adjusted) adjust(r, start, range, scratch);
      if (range.first == 0 && range.last == kSpanKeys) {
        softmax<true>(r, range, scratch);
      } else if (range.first < range.last) {
        softmax<false>(r, range, scratch);
      }
    }
  }

  // True where no span was merged yet.
  bool is_first_span(const AttentionRow& row, size_t start) const { return row.first_key >= start || begin == start; }

  // Merges a span's largest scores and sums into the rows', and says by what factors the values have to be merged: what
  // was there is kept times `keep`, the span's taken times `take`. Sixteen rows at a time, each in a lane of its own.
  void merge_sums(size_t start, const float* largest, const float* sum, AttentionState state, float* keep,
                  float* take) const {
    const V one = L::set1(1.0f);
    for (size_t r = 0; r < tile.row_count; r += 16) {
      const V before = L::load(state.largest + r), now = L::load(largest + r);
      const auto higher = L::less(before, now);
      const V factor = exp_negative<L>(L::select(higher, L::sub(before, now), L::sub(now, before)));
      const V kept = L::select(higher, factor, one), taken = L::select(higher, one, factor);
      L::store(keep + r, kept);
      L::store(take + r, taken);
      float merged_largest[16], merged_sum[16];
      L::store(merged_largest, L::select(higher, now, before));
      L::store(merged_sum, merge_values(L::load(state.sum + r), kept, L::load(sum + r), taken));
      for (size_t i = r; i < r + 16 && i < tile.row_count; ++i) {
        const KeyRange range = seen(tile.rows[i], start);
        if (range.first >= range.last) continue;
        const bool first_span = is_first_span(tile.rows[i], start);
        state.largest[i] = first_span ? largest[i] : merged_largest[i - r];
        state.sum[i] = first_span ? sum[i] : merged_sum[i - r];
      }
    }
  }

  static V merge_values(V before, V keep, V of_span, V take) { return L::fma(before, keep, L::mul(of_span, take)); }

  static V value_at(const Cache* value, size_t i, size_t count) {
    return count == 0 ? L::load(value + i * 16) : L::load(value, count);
  }

  // The keys from..to-1, which some of the rows see.
  template <size_t kRows, size_t kVectors>
  void weigh_edge(V (&sums)[kRows][kVectors], const KeyRange* ranges, size_t from, size_t to, const float* scores,
                  const Cache* values, size_t count) const {
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

  // values[r][d...] merged with sum over keys of p_j v_j: one chain of fused multiply-adds in the order of the keys. A
  // key that a row does not see is left out, not multiplied by zero: its value may be NaN.
  template <size_t kRows, size_t kVectors, bool kTail = false>
  void weigh_tile(size_t first_row, size_t start, size_t d, AttentionState state, AttentionScratch scratch) {
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
    const Cache* const span_values = values() + start * size + d;
    weigh_edge(sums, ranges, first, common_first, scores, span_values, count);
    const Cache* value = span_values + common_first * size;
    const float* p = scores + common_first;
    Ahead fetching = ahead;
    for (const float* const end = scores + common_last; p < end; ++p, value += size) {
      fetching.fetch();
      V values[kVectors];
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) values[i] = value_at(value, i, count);
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[r][i] =
            L::fma(L::set1(p[r * kSpanKeys]), values[i], sums[r][i]);
      }
    }
    ahead = fetching;
    weigh_edge(sums, ranges, common_last, last, scores, span_values, count);
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
      if (ranges[r].first >= ranges[r].last) continue;
      const bool first_span = is_first_span(tile.rows[first_row + r], start);
      MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) {
        float* const values = state.values + (first_row + r) * padded + d + i * 16;
        L::store(values, first_span ? sums[r][i]
                                    : merge_values(L::load(values), L::set1(scratch.keep[first_row + r]), sums[r][i],
                                                   L::set1(scratch.take[first_row + r])));
      }
    }
  }

  template <size_t kRows>
  void weigh_rows(size_t first_row, size_t start, AttentionState state, AttentionScratch scratch) {
    size_t d = 0;
    for (; d + L::kWide * 16 <= head_size; d += L::kWide * 16) {
      weigh_tile<kRows, L::kWide>(first_row, start, d, state, scratch);
    }
    for (; d + 16 <= head_size; d += 16) weigh_tile<kRows, 1>(first_row, start, d, state, scratch);
    if (d < head_size) weigh_tile<kRows, 1, true>(first_row, start, d, state, scratch);
  }

  // Of the one to three rows, or vectors, that fill no register tile.
  template <class Body>
  static void rest(size_t count, Body body) {
    if (count == 1) body.template operator()<1>();
    if (count == 2) body.template operator()<2>();
    if (count == 3) body.template operator()<3>();
  }

  void span(size_t start, AttentionState state, AttentionScratch scratch) {
    const KeyRange range = seen_by_any(0, tile.row_count, start);
    if (range.first >= range.last) return;
    const size_t whole = tile.row_count / kRegisterRows * kRegisterRows;
    ahead = {values() + (start + range.first) * head_size, (range.last - range.first) * head_size};
    load_keys(start, range, scratch.block);
    const size_t next = start + kSpanKeys, end = tile.rows[tile.row_count - 1].end_key;
    if (next < end) ahead = {keys() + next * head_size, (end - next < kSpanKeys ? end - next : kSpanKeys) * head_size};
    for (size_t r = 0; r < whole; r += kRegisterRows) score_rows<kRegisterRows>(r, start, scratch);
    rest(tile.row_count - whole, [&]<size_t kRows>() { score_rows<kRows>(whole, start, scratch); });
    softmax_rows(start, scratch);
    merge_sums(start, scratch.largest, scratch.sum, state, scratch.keep, scratch.take);
    for (size_t r = 0; r < whole; r += kRegisterRows) weigh_rows<kRegisterRows>(r, start, state, scratch);
    rest(tile.row_count - whole, [&]<size_t kRows>() { weigh_rows<kRows>(whole, start, state, scratch); });
  }

  static void attend(const AttentionCall& call, const AttentionTile& tile, size_t first, size_t last,
                     AttentionState state, AttentionScratch scratch) {
    Attention self{call, tile, first * kSpanKeys};
    for (size_t i = first; i < last; ++i) self.span(i * kSpanKeys, state, scratch);
  }

  static void merge(const AttentionCall& call, const AttentionTile& tile, size_t span, AttentionState of_span,
                    AttentionState state, AttentionScratch scratch) {
    const Attention self{call, tile, 0};
    const size_t start = span * kSpanKeys;
    self.merge_sums(start, of_span.largest, of_span.sum, state, scratch.keep, scratch.take);
    for (size_t r = 0; r < tile.row_count; ++r) {
      const KeyRange range = self.seen(tile.rows[r], start);
      if (range.first >= range.last) continue;
      const bool first_span = self.is_first_span(tile.rows[r], start);
      const V keep = L::set1(scratch.keep[r]), take = L::set1(scratch.take[r]);
      for (size_t d = r * self.padded; d < (r + 1) * self.padded; d += 16) {
        const V now = L::load(of_span.values + d);
        L::store(state.values + d, first_span ? now : merge_values(L::load(state.values + d), keep, now, take));
      }
    }
  }

  // What a head's sink takes of the probability: a score more, whose value is zero.
  void merge_sinks(AttentionState state) const {
    for (size_t r = 0; r < tile.row_count; ++r) {
      const V before = L::set1(state.largest[r]), sink = L::set1(tile.rows[r].sink);
      const V largest = L::max(before, sink);
      const V kept = exp_negative<L>(L::sub(before, largest)), taken = exp_negative<L>(L::sub(sink, largest));
      float sum[16];
      L::store(sum, L::fma(L::set1(state.sum[r]), kept, taken));
      state.sum[r] = sum[0];
      for (size_t d = r * padded; d < (r + 1) * padded; d += 16) {
        L::store(state.values + d, L::mul(L::load(state.values + d), kept));
      }
    }
  }

  static void finish(const AttentionCall& call, const AttentionTile& tile, AttentionState state) {
    const Attention self{call, tile, 0};
    if (call.sinks != nullptr) self.merge_sinks(state);
    for (size_t r = 0; r < tile.row_count; ++r) {
      const V sum = L::set1(state.sum[r]);
      for (size_t d = 0; d < self.head_size; d += 16) {
        const size_t count = self.head_size - d < 16 ? self.head_size - d : 16;
        L::store(tile.rows[r].output + d, L::div(L::load(state.values + r * self.padded + d), sum), count);
      }
    }
  }
};

// The table for one set of lanes. The cache's type is looked at once a call of a kernel.
template <class L>
constexpr AttentionKernels attention_kernels() {
  using Half = Attention<L, uint16_t>;
  using Float = Attention<L, float>;
  return {
      [](const AttentionCall& call, const AttentionSequence& sequence, size_t kv_head) {
        (call.half_cache ? Half::store : Float::store)(call, sequence, kv_head);
      },
      [](const AttentionCall& call, const AttentionTile& tile, size_t first, size_t last, AttentionState state,
         AttentionScratch scratch) {
        (call.half_cache ? Half::attend : Float::attend)(call, tile, first, last, state, scratch);
      },
      Float::merge,
      Float::finish,
  };
}

}  // namespace
}  // namespace mxspec
