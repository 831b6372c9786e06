// The kernels over the lanes of one instruction set. Compiled once for each (CMakeLists.txt), and without MXSPEC_FOR
// for the portable ones.
#if !defined(MXSPEC_FOR)
#define MXSPEC_FOR Scalar
#define MXSPEC_LANES ScalarLanes, ScalarBytes
#include "runtime/ops/kernels/lanes/lanes_scalar.h"
#elif defined(__AVX512F__)
#define MXSPEC_LANES Avx512Lanes, Avx512Bytes
#include "runtime/ops/kernels/lanes/lanes_avx512.h"
#elif defined(__AVX2__)
#define MXSPEC_LANES Avx2Lanes, Avx2Bytes
#include "runtime/ops/kernels/lanes/lanes_avx2.h"
#elif defined(__aarch64__)
#define MXSPEC_LANES NeonLanes, NeonBytes
#include "runtime/ops/kernels/lanes/lanes_neon.h"
#endif

#include "runtime/ops/kernels/attention/attention_impl.h"
#include "runtime/ops/kernels/gated_impl.h"
#include "runtime/ops/kernels/isa_kernels.h"
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

constinit const LaneKernels MXSPEC_OF_ISA(kLanes) = lane_kernels<MXSPEC_LANES>();

}  // namespace mxspec
