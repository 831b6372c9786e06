// Attention over a cache of CacheKind::kMxInt8, over any of the lanes and bytes (lanes_*.h).
//
// Queries and, in each span, the products of probabilities with the values' scales become int16 with one float scale
// for each block of 32 entries of a head; a key's score and a row's values are then exact sums of integers, scaled once
// a block:
//
//   s_j = sum over blocks b of (sum_d qi_d ki_jd) * query scale_b * key scale_jb
//   a_d = (sum_j wi_j vi_jd) * value scale_b,  wi_j about p_j * value scale_jb / value scale_b
//
// value scale_b is the largest among the keys that the row sees. The step of int16 is 1 / 32,512 of the largest
// magnitude, that of the cache's elements at best 1 / 127.
//
// Keys are stored, and queries read, as the Walsh-Hadamard transform of each block: it changes no product but for the
// factor 32, and spreads the few large entries that keys have over their block (QuaRot, arXiv 2404.00456, section 4).
#pragma once

#include "runtime/ops/kernels/attention/attention_span_impl.h"
#include "runtime/ops/kernels/attention/mxint8_row.h"
#include "runtime/ops/kernels/lanes/lanes_scalar.h"

namespace mxspec {
namespace {

template <class L, class B>
struct MxInt8Attention : AttentionSpan<L> {
  using Span = AttentionSpan<L>;
  using V = typename L::Vector;
  using Ints = typename B::Ints;
  using Sums = typename B::Sums;
  using Span::call, Span::tile, Span::head_size, Span::seen, Span::seen_by_any;
  static constexpr size_t kWide = L::kWide > 1 ? L::kWide / 2 : 1;  // sums are two registers of a vector
  static constexpr size_t kVectorsOfBlock = kCacheBlock / 16;
  static constexpr size_t kPacksOfBlock = kCacheBlock / 4;
  static constexpr size_t kPacksOfSpan = kSpanKeys / 4;
  static constexpr float kStep = 1.0f / 64;   // of an element whose scale is 1
  static constexpr float kLeast = 0x1p-100f;  // numbers all smaller than this count as zeros: an inverse is finite

  const size_t bytes = entry_bytes(CacheKind::kMxInt8, head_size);
  const size_t blocks = head_size / kCacheBlock;

  using Span::Span;

  // Of the span that begins at this position.
  const uint8_t* keys(size_t start) const {
    return static_cast<const uint8_t*>(call.key_cache) + entry_of(call, tile.first_entry, start) * bytes;
  }
  const uint8_t* values(size_t start) const {
    return static_cast<const uint8_t*>(call.value_cache) + entry_of(call, tile.first_entry, start) * bytes;
  }

  struct Block {
    V vectors[kVectorsOfBlock];
  };
  static_assert(kVectorsOfBlock == 2);

  static Block load_block(const float* from) { return {{L::load(from), L::load(from + 16)}}; }

  // Times the Hadamard matrix of 32 rows.
  static Block transformed(Block x) {
    x = {{L::add(x.vectors[0], x.vectors[1]), L::sub(x.vectors[0], x.vectors[1])}};
    for (V& vector : x.vectors) {
      vector = butterfly<8>(vector);
      vector = butterfly<4>(vector);
      vector = butterfly<2>(vector);
      vector = butterfly<1>(vector);
    }
    return x;
  }

  // Sums in the lanes whose number has a 0 in the place of kDistance, differences in the others.
  template <int kDistance>
  static V butterfly(V x) {
    float signs[16];
    for (int i = 0; i < 16; ++i) signs[i] = (i & kDistance) == 0 ? 1.0f : -1.0f;
    return L::fma(x, L::load(signs), L::template swap<kDistance>(x));
  }

  static void store(const AttentionCall& call, const AttentionSequence& sequence, size_t kv_head) {
    const size_t bytes = entry_bytes(CacheKind::kMxInt8, call.head_size);
    const float* const from[] = {call.key, call.value};
    void* const to[] = {call.key_cache, call.value_cache};
    for (size_t which = 0; which < 2; ++which) {
      for (size_t i = 0; i < sequence.count; ++i) {
        const size_t number = entry_of(call, first_entry(call, sequence, kv_head), sequence.past + i);
        uint8_t* const entry = static_cast<uint8_t*>(to[which]) + number * bytes;
        const float* const row = from[which] + ((sequence.first + i) * call.kv_heads + kv_head) * call.head_size;
        for (size_t d = 0; d < call.head_size; d += kCacheBlock) {
          float values[kCacheBlock];
          Block block = load_block(row + d);
          if (which == 0) block = transformed(block);
          for (size_t v = 0; v < kVectorsOfBlock; ++v) L::store(values + v * 16, block.vectors[v]);
          entry[call.head_size + d / kCacheBlock] = store_block(values, reinterpret_cast<int8_t*>(entry + d));
        }
      }
    }
  }

  // What the block of the scratch memory holds, in the place of keys as floats: packs of a span's keys and values, and
  // their scales.
  struct Packs {
    uint8_t* keys;        // [16-key vector][head_size / 4] packs
    uint8_t* values;      // [head_size / 16][32] packs, of four keys each
    float* key_scales;    // [block][128]
    float* value_scales;  // [block][128]
  };
  Packs packs_in(AttentionScratch scratch) const {
    uint8_t* const memory = reinterpret_cast<uint8_t*>(scratch.block);
    float* const scales = reinterpret_cast<float*>(memory + 2 * kSpanKeys * head_size);
    return {memory, memory + kSpanKeys * head_size, scales, scales + blocks * kSpanKeys};
  }

  // A row's query as integers.
  struct Query {
    uint32_t* multipliers;  // [head_size / 4] of kMultiplierWords
    float* scales;          // [block], with the scale of scores
    int32_t* starts;        // [block]: what sums begin with, to take the packs' offset out
  };
  Query query_of(size_t row, float* queries) const {
    float* const memory = queries + row * query_floats(CacheKind::kMxInt8, head_size);
    uint32_t* const multipliers = reinterpret_cast<uint32_t*>(memory);
    float* const scales = memory + head_size / 4 * kMultiplierWords;
    return {multipliers, scales, reinterpret_cast<int32_t*>(scales + blocks)};
  }

  // The largest of the lanes, for numbers that are not negative; NaN where one of them, or of `all`, is not finite.
  static float largest(V most, V all) { return L::largest(most) + L::sum(L::mul(all, L::zero())); }
  // Of the scale by which numbers become integers; 0 where all of them are NaN or next to nothing.
  static float inverse(float largest) { return largest >= kLeast ? kLargestMultiplier / largest : 0; }

  static V scaled(V x, float by) { return by == 0 ? L::zero() : L::mul(x, L::set1(by)); }

  void take_queries(float* queries) const {
    for (size_t r = 0; r < tile.row_count; ++r) {
      const Query query = query_of(r, queries);
      for (size_t b = 0; b < blocks; ++b) {
        const Block x = transformed(load_block(tile.rows[r].query + b * kCacheBlock));
        V most = L::zero(), all = L::zero();
        for (const V vector : x.vectors) {
          most = L::max(most, L::max(vector, L::sub(L::zero(), vector)));
          all = L::add(all, vector);
        }
        const float largest_of_block = largest(most, all);
        const float scale = inverse(largest_of_block);
        Ints sum = B::zero();
        for (size_t i = 0; i < kVectorsOfBlock; ++i) {
          uint32_t* const to = query.multipliers + (b * kPacksOfBlock + i * 4) * kMultiplierWords;
          sum = B::add(sum, B::key_multipliers(scaled(x.vectors[i], scale), to));
        }
        query.scales[b] = largest_of_block / kLargestMultiplier * (kStep / kCacheBlock) * call.scale;
        query.starts[b] = -B::kOffset * B::sum(sum);
      }
    }
  }

  // Sixteen rows of a span from number `first` on; rows outside the range are those at its ends.
  void rows_at(const uint8_t* from, size_t first, KeyRange range, const uint8_t* (&rows)[16]) const {
    for (size_t j = 0; j < 16; ++j) {
      const size_t key = first + j;
      rows[j] = from + (key < range.first ? range.first : key < range.last ? key : range.last - 1) * bytes;
    }
  }

  // Asks for sixteen rows of what is read next. Without it the memory idles while a span is computed.
  void fetch(const uint8_t* from, size_t first, KeyRange range) const {
    const size_t last = range.last < first + 16 ? range.last : first + 16;
    for (size_t key = range.first > first ? range.first : first; key < last; ++key) {
      for (size_t d = 0; d < head_size; d += 64) __builtin_prefetch(from + key * bytes + d);
    }
  }

  void take_scales(const uint8_t* const (&rows)[16], size_t first, float* scales) const {
    for (size_t b = 0; b < blocks; ++b) {
      uint8_t sixteen[16];
      for (size_t j = 0; j < 16; ++j) sixteen[j] = rows[j][head_size + b];
      for (size_t j = 0; j < 16; ++j) scales[b * kSpanKeys + first + j] = scale_of(sixteen[j]);
    }
  }

  void load_keys(size_t start, KeyRange range, Packs packs) const {
    const uint8_t* rows[16];
    for (size_t key = range.first / 16 * 16; key < range.last; key += 16) {
      fetch(values(start), key, range);
      rows_at(keys(start), key, range, rows);
      B::key_packs(rows, head_size, packs.keys + key * head_size);
      take_scales(rows, key, packs.key_scales);
    }
  }

  // `next`: keys of the next span that are read.
  void load_values(size_t start, KeyRange range, KeyRange next, Packs packs) const {
    const uint8_t* rows[16];
    for (size_t key = range.first / 16 * 16; key < range.last; key += 16) {
      fetch(keys(start + kSpanKeys), key, next);
      rows_at(values(start), key, range, rows);
      for (size_t j = 0; j < 16; j += 4) {
        B::value_packs(rows + j, head_size, packs.values + (key + j) / 4 * kPackBytes, kPacksOfSpan * kPackBytes);
      }
      take_scales(rows, key, packs.value_scales);
    }
  }

  template <size_t kRows, size_t kVectors>
  MXSPEC_NOINLINE void score_tile(size_t first_row, size_t v, Packs packs, AttentionScratch scratch) const {
    Query queries[kRows];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) queries[r] = query_of(first_row + r, scratch.queries);
    for (size_t b = 0; b < blocks; ++b) {
      Sums sums[kRows][kVectors];
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) sums[r][i] = B::no_products();
      }
      for (size_t p = b * kPacksOfBlock; p < (b + 1) * kPacksOfBlock; ++p) {
        typename B::Pack pack[kVectors];
        MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) {
          pack[i] = B::load(packs.keys + (v + i) * 16 * head_size + p * kPackBytes);
        }
        MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
          const uint32_t* const by = queries[r].multipliers + p * kMultiplierWords;
          MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) {
            sums[r][i] = B::add_key_products(sums[r][i], pack[i], by);
          }
        }
      }
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const V scale = L::set1(queries[r].scales[b]);
        const Ints start = B::set1(queries[r].starts[b]);
        float* const scores = scratch.scores + (first_row + r) * kSpanKeys + v * 16;
        MXSPEC_UNROLL for (size_t i = 0; i < kVectors; ++i) {
          const V of_block = L::mul(B::floats(B::add(B::total(sums[r][i]), start)), scale);
          const V of_keys = L::load(packs.key_scales + b * kSpanKeys + (v + i) * 16);
          const V before = b == 0 ? L::zero() : L::load(scores + i * 16);
          L::store(scores + i * 16, L::fma(of_block, of_keys, before));
        }
      }
    }
  }

  template <size_t kRows>
  void score_rows(size_t first_row, size_t start, Packs packs, AttentionScratch scratch) const {
    const KeyRange range = seen_by_any(first_row, kRows, start);
    const size_t end = (range.last + 15) / 16;
    size_t v = range.first / 16;
    for (; v + kWide <= end; v += kWide) score_tile<kRows, kWide>(first_row, v, packs, scratch);
    Span::rest(end - v, [&]<size_t kVectors>() { score_tile<kRows, kVectors>(first_row, v, packs, scratch); });
  }

  // What turns probabilities into the integers that multiply the values of a block: float[128] shares, zero for a key
  // that is not in the range. Returns what the sums have to be multiplied with: 0 or NaN where all shares are zeros.
  float take_shares(KeyRange range, const float* scales, float* shares) const {
    V most = L::zero(), all = L::zero();
    V seen_scales[Span::kVectorsOfSpan];
    for (size_t v = 0; v < Span::kVectorsOfSpan; ++v) {
      seen_scales[v] = L::zero();
      if (v * 16 >= range.last || v * 16 + 16 <= range.first) continue;
      const auto mask = L::range(range.first > v * 16 ? range.first - v * 16 : 0,
                                 range.last - v * 16 < 16 ? range.last - v * 16 : 16);
      seen_scales[v] = L::select(mask, L::load(scales + v * 16), L::zero());
      most = L::max(most, seen_scales[v]);
      all = L::add(all, L::mul(seen_scales[v], L::zero()));
    }
    const float scale = largest(most, all);
    const float factor = inverse(scale);
    for (size_t v = 0; v < Span::kVectorsOfSpan; ++v) L::store(shares + v * 16, scaled(seen_scales[v], factor));
    return scale / kLargestMultiplier * kStep;
  }

  // Of the rows that see a whole span.
  struct WholeSpan {
    float* shares;  // [block][128], in the place of the keys' scales
    float* scales;  // [block], in the place of the packed keys
  };

  template <size_t kRows>
  void weigh_rows(size_t first_row, size_t start, Packs packs, WholeSpan whole, AttentionState state,
                  AttentionScratch scratch) const {
    const KeyRange any = seen_by_any(first_row, kRows, start);
    if (any.first >= any.last) return;
    const size_t first_v = any.first / 16, end_v = (any.last + 15) / 16;
    KeyRange ranges[kRows];
    MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) ranges[r] = seen(tile.rows[first_row + r], start);
    for (size_t b = 0; b < blocks; ++b) {
      uint32_t multipliers[kRows][kPacksOfSpan * kMultiplierWords];
      float scales[kRows];
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const float* const probabilities = scratch.scores + (first_row + r) * kSpanKeys;
        float own[kSpanKeys];
        const float* shares = own;
        if (sees_all(ranges[r])) {
          shares = whole.shares + b * kSpanKeys;
          scales[r] = whole.scales[b];
        } else {
          scales[r] = take_shares(ranges[r], packs.value_scales + b * kSpanKeys, own);
        }
        for (size_t v = first_v; v < end_v; ++v) {
          const bool none = v * 16 >= ranges[r].last || v * 16 + 16 <= ranges[r].first;
          const V weights = none ? L::zero() : L::mul(L::load(probabilities + v * 16), L::load(shares + v * 16));
          B::value_multipliers(weights, multipliers[r] + v * 4 * kMultiplierWords);
        }
      }
      Sums sums[kRows][kVectorsOfBlock];
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        MXSPEC_UNROLL for (size_t i = 0; i < kVectorsOfBlock; ++i) sums[r][i] = B::no_products();
      }
      for (size_t p = first_v * 4; p < end_v * 4; ++p) {
        typename B::Pack pack[kVectorsOfBlock];
        MXSPEC_UNROLL for (size_t i = 0; i < kVectorsOfBlock; ++i) {
          pack[i] = B::load(packs.values + ((b * kVectorsOfBlock + i) * kPacksOfSpan + p) * kPackBytes);
        }
        MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
          MXSPEC_UNROLL for (size_t i = 0; i < kVectorsOfBlock; ++i) {
            sums[r][i] = B::add_value_products(sums[r][i], pack[i], multipliers[r] + p * kMultiplierWords);
          }
        }
      }
      MXSPEC_UNROLL for (size_t r = 0; r < kRows; ++r) {
        if (ranges[r].first >= ranges[r].last) continue;
        const V scale = L::set1(scales[r]);
        MXSPEC_UNROLL for (size_t i = 0; i < kVectorsOfBlock; ++i) {
          const V of_span = L::mul(B::floats(B::total(sums[r][i])), scale);
          Span::take_values(first_row + r, start, b * kCacheBlock + i * 16, of_span, state, scratch);
        }
      }
    }
  }

  static bool sees_all(KeyRange range) { return range.first == 0 && range.last == kSpanKeys; }

  void span(size_t start, AttentionState state, AttentionScratch scratch) const {
    const KeyRange range = seen_by_any(0, tile.row_count, start);
    if (range.first >= range.last) return;
    const Packs packs = packs_in(scratch);
    load_keys(start, range, packs);
    Span::by_register_rows([&]<size_t kRows>(size_t r) { score_rows<kRows>(r, start, packs, scratch); });
    Span::softmax_rows(start, scratch);
    Span::merge_sums(start, scratch.largest, scratch.sum, state, scratch.keep, scratch.take);
    const size_t next = start + kSpanKeys, end = tile.rows[tile.row_count - 1].end_key;
    load_values(start, range, {0, next < end ? end - next : 0}, packs);
    const WholeSpan whole = {packs.key_scales, reinterpret_cast<float*>(packs.keys)};
    for (size_t b = 0; b < blocks && sees_all(range); ++b) {
      const size_t first = b * kSpanKeys;
      whole.scales[b] = take_shares(range, packs.value_scales + first, whole.shares + first);
    }
    Span::by_register_rows([&]<size_t kRows>(size_t r) { weigh_rows<kRows>(r, start, packs, whole, state, scratch); });
  }

  static void prepare(const AttentionCall& call, const AttentionTile& tile, float* queries) {
    MxInt8Attention(call, tile, 0).take_queries(queries);
  }

  static void attend(const AttentionCall& call, const AttentionTile& tile, size_t first, size_t last,
                     AttentionState state, AttentionScratch scratch) {
    const MxInt8Attention self(call, tile, first * kSpanKeys);
    for (size_t i = first; i < last; ++i) self.span(i * kSpanKeys, state, scratch);
  }
};

}  // namespace
}  // namespace mxspec
