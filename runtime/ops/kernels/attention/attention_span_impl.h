// What attention over any kind of cache has in common: the softmax of a span, and how spans are merged. Over any of the
// lanes (lanes_*.h).
#pragma once

#include "runtime/ops/kernels/attention/attention_kernels.h"
#include "runtime/ops/kernels/compiler.h"
#include "runtime/ops/kernels/lanes/lanes_math.h"

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
    __builtin_prefetch(next_, 0, 2);  // to the second-level cache, which waits for more lines at a time than the first
    next_ = last_ - next_ < 64 ? last_ : next_ + 64;
  }

 private:
  const char *next_, *last_;
};

template <class L>
struct AttentionSpan {
  using V = typename L::Vector;
  static constexpr size_t kVectorsOfSpan = kSpanKeys / 16;
  static constexpr size_t kRegisterRows = 4;  // of a register tile

  const AttentionCall& call;
  const AttentionTile& tile;
  const size_t begin;  // the state holds nothing of the positions before this one
  const size_t head_size = call.head_size;
  const size_t padded = (call.head_size + 15) / 16 * 16;

  AttentionSpan(const AttentionCall& call, const AttentionTile& tile, size_t begin)
      : call(call), tile(tile), begin(begin) {}

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

  // Takes sixteen of a row's values over one span into its state, from entry d of the head on.
  void take_values(size_t row, size_t start, size_t d, V of_span, AttentionState state,
                   AttentionScratch scratch) const {
    float* const values = state.values + row * padded + d;
    L::store(values, is_first_span(tile.rows[row], start) ? of_span
                                                          : merge_values(L::load(values), L::set1(scratch.keep[row]),
                                                                         of_span, L::set1(scratch.take[row])));
  }

  static V merge_values(V before, V keep, V of_span, V take) { return L::fma(before, keep, L::mul(of_span, take)); }

  // Of the one to three rows, or vectors, that fill no register tile.
  template <class Body>
  static void rest(size_t count, Body body) {
    if (count == 1) body.template operator()<1>();
    if (count == 2) body.template operator()<2>();
    if (count == 3) body.template operator()<3>();
  }

  // Calls body<rows>(first row) for all rows of the tile.
  template <class Body>
  void by_register_rows(const Body& body) const {
    const size_t whole = tile.row_count / kRegisterRows * kRegisterRows;
    for (size_t r = 0; r < whole; r += kRegisterRows) body.template operator()<kRegisterRows>(r);
    rest(tile.row_count - whole, [&]<size_t kRows>() { body.template operator()<kRows>(whole); });
  }

  static void merge(const AttentionCall& call, const AttentionTile& tile, size_t span, AttentionState of_span,
                    AttentionState state, AttentionScratch scratch) {
    const AttentionSpan self(call, tile, 0);
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
    const AttentionSpan self(call, tile, 0);
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

}  // namespace
}  // namespace mxspec
