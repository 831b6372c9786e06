// The checks that all operators over a cache of keys and values share: shapes, slots and lengths.
#pragma once

#include <vector>

#include "runtime/ops/kernels/attention/attention.h"
#include "runtime/ops/op.h"

namespace mxspec {

// Each throws an OpError that names the first input that does not fit.

// Queries [1, tokens, heads, head_size], heads being a multiple of kv_heads.
void check_query(const Tensor& query, int64_t kv_heads);
// The kind of a cache, from its type: float32, float16, or uint8 for kMxInt8.
CacheKind kind_of(const Tensor& past);

// The size of a head of a cache [slots, kv_heads, capacity, head_size]; of kMxInt8, whose last dimension is the bytes
// of an entry, 33 for 32 elements.
int64_t head_size_of(const Tensor& past);

// Keys and values that are cached, both alike.
void check_cache(const Tensor& past_key, const Tensor& past_value, int64_t head_size);
// Keys and values of a call's tokens: [1, tokens, kv_heads, head_size].
void check_new_entries(const Tensor& key, const Tensor& value, int64_t tokens, int64_t kv_heads, int64_t head_size);
// An optional input [heads].
void check_per_head(const char* name, const std::optional<Tensor>& values, int64_t heads);
// An optional input [heads, distances].
void check_distance_bias(const std::optional<Tensor>& bias, int64_t heads);

// The place of each sequence's tokens among those of the call. Their slots are 0, their past is empty.
std::vector<AttentionSequence> read_sequences(const Tensor& new_lengths, int64_t tokens);
// Puts each sequence in a slot of its own.
void read_slots(const Tensor& slots, int64_t slot_count, std::vector<AttentionSequence>& sequences);
// Number of entries of each sequence before its new ones, for which there is room; window: 0 for none.
void read_past(const Tensor& past_lengths, int64_t capacity, int64_t window, std::vector<AttentionSequence>& sequences);
// Number of entries of its slot that each sequence sees.
void read_encoder_lengths(const Tensor& encoder_lengths, int64_t capacity, std::vector<AttentionSequence>& sequences);
// Checks that the new entries of each sequence have room in a slot.
void check_room(int64_t capacity, const std::vector<AttentionSequence>& sequences);

// Checks that an output is the buffer of its cache. In another buffer it would have to begin as a copy of every slot.
void check_in_place(Context& context, size_t index, const char* name, const Tensor& past);

}  // namespace mxspec
