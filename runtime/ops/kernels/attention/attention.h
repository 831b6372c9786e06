// Attention of the tokens of several sequences, one sequence after another, over a cache written in place.
//
// A row (one query head at one position) sees a range of its sequence's entries, cut into spans of 128 absolute
// positions. Of each span it takes its own softmax numbers, and merges the spans in rising order. Nothing in that
// depends on the other rows of the call, on the chunks that filled the cache, or on who computes which span: so work
// may be cut anywhere.
//
//   span:   m = max s_j,  p_j = exp(s_j - m),  l = sum p_j (16 lanes by position),  a = sum p_j v_j (j rising)
//   merge:  M' = max(M, m),  L' = L exp(M - M') + l exp(m - M'),  A' likewise;  output = A / L
//   A sink is one more score, of a value of zeros, merged last.
#pragma once

#include <cstddef>
#include <cstdint>

#include "formats/native/isa.h"
#include "runtime/ops/kernels/parallel_for.h"

namespace mxspec {

// What a cache holds of a head's key or value, entry by entry.
enum class CacheKind {
  kFloat32,
  kFloat16,
  kMxInt8,  // OCP MX: head_size elements of INT8, then a scale of E8M0 for each 32 of them
};

inline constexpr size_t kCacheBlock = 32;  // elements of kMxInt8 that share a scale

// Bytes of an entry. The head size of kMxInt8 is a multiple of kCacheBlock.
constexpr size_t entry_bytes(CacheKind kind, size_t head_size) {
  return kind == CacheKind::kFloat32   ? head_size * sizeof(float)
         : kind == CacheKind::kFloat16 ? head_size * sizeof(uint16_t)
                                       : head_size + head_size / kCacheBlock;
}

inline constexpr size_t kSpanKeys = 128;    // keys of one partial softmax
inline constexpr size_t kSharingRows = 64;  // rows that share one pass over keys and values

// What the rows of a call see, and what the call does to the cache.
enum class AttentionMode {
  kCausal,  // its keys and values are appended to the cache; a row sees the entries up to its own
  kOwn,     // its keys and values go to scratch memory [kv_heads, tokens, head_size] in the cache's place; a row sees
            // those of all its sequence's tokens
  kStored,  // nothing is written; a row sees the `past` entries of its slot
};

// A sequence's part of a call: its tokens are first..first + count - 1 of the call's. It has `past` entries in its slot
// before the call.
struct AttentionSequence {
  size_t slot, past, first, count;
};

// Whether a cache has room for a sequence's new entries, all of which are written before a row looks back: those that
// some row sees must still be there. With a window (0: none), a cache is a ring of whole spans if texts are longer.
constexpr bool has_room(size_t capacity, size_t window, size_t past, size_t count) {
  if (past + count <= capacity) return true;
  return window != 0 && capacity % kSpanKeys == 0 && window + count - 1 <= capacity;
}

// One call. The caller has checked every shape; of each sequence that it has_room; and that no two share a slot.
struct AttentionCall {
  AttentionMode mode;
  const AttentionSequence* sequences;
  size_t sequence_count;
  size_t heads, kv_heads, head_size, capacity;
  const float* query;  // [tokens, heads, head_size]
  const float* key;    // [tokens, kv_heads, head_size]
  const float* value;  // like key
  CacheKind kind;
  // [slots, kv_heads, capacity] entries, holding the past: position p at p % capacity.
  void* key_cache;
  void* value_cache;    // like key_cache
  const float* slopes;  // [heads], or nullptr
  const float* sinks;   // [heads], or nullptr
  // [heads, distances], or nullptr: added to the score of a key by its distance from the row in positions, beginning
  // with first_distance (negative: before it). The first and the last serve all distances beyond them.
  const float* distance_bias;
  size_t distances;
  int64_t first_distance;
  float* output;  // like query
  float scale;
  float softcap;  // 0: none
  size_t window;  // 0: none
};

// Writes the call's keys and values to the cache, after the `past` entries of each sequence. Looks at nothing that has
// to do with queries, nor at the mode: that is kCausal.
void store_keys_and_values(const AttentionCall& call, Isa isa, const ParallelFor& parallel);

// Writes the call's keys and values where its mode says, then attends.
void attention(const AttentionCall& call, Isa isa, const ParallelFor& parallel);

}  // namespace mxspec
