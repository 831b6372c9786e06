// The attention kernels over any of the lanes (lanes_*.h). Included by lane_kernels.cpp.
#pragma once

#include "runtime/ops/kernels/attention/attention_float_impl.h"
#include "runtime/ops/kernels/attention/attention_mxint8_impl.h"

namespace mxspec {
namespace {

// body(kernels of the call's kind of cache)
template <class L, class B, class Body>
void of_kind(const AttentionCall& call, const Body& body) {
  switch (call.kind) {
    case CacheKind::kFloat32:
      return body.template operator()<FloatAttention<L, float>>();
    case CacheKind::kFloat16:
      return body.template operator()<FloatAttention<L, uint16_t>>();
    case CacheKind::kMxInt8:
      return body.template operator()<MxInt8Attention<L, B>>();
  }
}

// The table for one set of lanes and bytes. The kind of cache is looked at once a call of a kernel.
template <class L, class B>
constexpr AttentionKernels attention_kernels() {
  return {
      [](const AttentionCall& call, const AttentionSequence& sequence, size_t kv_head) {
        of_kind<L, B>(call, [&]<class Kind>() { Kind::store(call, sequence, kv_head); });
      },
      [](const AttentionCall& call, const AttentionTile& tile, float* queries) {
        of_kind<L, B>(call, [&]<class Kind>() { Kind::prepare(call, tile, queries); });
      },
      [](const AttentionCall& call, const AttentionTile& tile, size_t first, size_t last, AttentionState state,
         AttentionScratch scratch) {
        of_kind<L, B>(call, [&]<class Kind>() { Kind::attend(call, tile, first, last, state, scratch); });
      },
      AttentionSpan<L>::merge,
      AttentionSpan<L>::finish,
  };
}

}  // namespace
}  // namespace mxspec
