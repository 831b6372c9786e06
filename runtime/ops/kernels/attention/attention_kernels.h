// What each instruction set's file provides to attention.cpp. Plain data only crosses this border.
#pragma once

#include "runtime/ops/kernels/attention/attention.h"

namespace mxspec {

// A row of a tile: one query head at one position.
struct AttentionRow {
  const float* query;
  float* output;
  size_t position;
  size_t first_key, end_key;   // sees the keys first_key..end_key - 1
  const float* distance_bias;  // of its head, or nullptr
  float slope;
  float sink;  // read where the call has sinks
};

// Rows of one sequence that read the same key-value head; what they see begins and ends no earlier from row to row.
struct AttentionTile {
  size_t first_entry;  // of the cache, that of the key-value head's position 0
  size_t row_count;
  const AttentionRow* rows;
};

// Softmax numbers of the rows of a tile: over one span, or merged over several. Rows are padded to a multiple of 16.
struct AttentionState {
  float* largest;  // [row]
  float* sum;      // [row]
  float* values;   // [row][padded head size]
};

// What one thread needs while it works on a tile.
struct AttentionScratch {
  float* block;    // keys as [16-key vector][head_size][16]
  float* scores;   // [row][128]
  float* largest;  // [row] of this span
  float* sum;      // [row] of this span
  float* keep;     // [row]: factor of what was merged before
  float* take;     // [row]: factor of this span
  float* queries;  // [row][query_floats], prepared
};

// Of a row's query as the kernels want it: for kMxInt8 as integers, two words for four entries, a scale and a start for
// 32.
constexpr size_t query_floats(CacheKind kind, size_t head_size) {
  return kind == CacheKind::kMxInt8 ? head_size / 2 + head_size / kCacheBlock * 2 : 0;
}

// Of the cache, the entry of a sequence's key-value head that is its position 0. Where sequences see their own tokens,
// those of all of them lie in one slot.
inline size_t first_entry(const AttentionCall& call, const AttentionSequence& sequence, size_t kv_head) {
  const size_t before = call.mode == AttentionMode::kOwn ? sequence.first : 0;
  return (sequence.slot * call.kv_heads + kv_head) * call.capacity + before;
}

// The entry of a position, where the head's position 0 is `first`. A cache is a ring: a position takes the place of the
// one `capacity` before it. A span's positions lie side by side, for a ring that turns holds whole spans.
inline size_t entry_of(const AttentionCall& call, size_t first, size_t position) {
  return first + position % call.capacity;
}

struct AttentionKernels {
  // Writes the new keys and values of one (sequence, key-value head) to the cache, rounded to its type.
  void (*store)(const AttentionCall&, const AttentionSequence&, size_t kv_head);
  // Prepares the queries of a tile: float[row][query_floats].
  void (*prepare)(const AttentionCall&, const AttentionTile&, float* queries);
  // Attends over the spans first..last-1 and merges them, into a state that holds nothing yet.
  void (*attend)(const AttentionCall&, const AttentionTile&, size_t first, size_t last, AttentionState,
                 AttentionScratch);
  // Merges span number `span`, attended alone, into the state of those before it.
  void (*merge)(const AttentionCall&, const AttentionTile&, size_t span, AttentionState of_span, AttentionState,
                AttentionScratch);
  // Writes the outputs.
  void (*finish)(const AttentionCall&, const AttentionTile&, AttentionState);
};

}  // namespace mxspec
