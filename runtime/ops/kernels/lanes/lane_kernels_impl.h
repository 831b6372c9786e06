// The table of an instruction set from its lanes and bytes. Included by one file an instruction set.
#pragma once

#include "runtime/ops/kernels/attention/attention_impl.h"
#include "runtime/ops/kernels/gated_impl.h"
#include "runtime/ops/kernels/lanes/lane_kernels.h"
#include "runtime/ops/kernels/norm_impl.h"
#include "runtime/ops/kernels/weighted_sum_impl.h"

namespace mxspec {
namespace {

template <class L, class B>
constexpr LaneKernels lane_kernels() {
  return {attention_kernels<L, B>(),
          {gate<L, Silu<L>>, gate<L, GeluTanh<L>>, gate<L, ClampedSwiGlu<L>>},
          {rms_norm_row<L>, layer_norm_row<L>},
          weighted_sum<L>};
}

}  // namespace
}  // namespace mxspec
