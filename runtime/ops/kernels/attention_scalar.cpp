#include "runtime/ops/kernels/attention_impl.h"
#include "runtime/ops/kernels/lanes_scalar.h"

namespace mxspec {

constinit const AttentionKernels kAttentionScalar = attention_kernels<ScalarLanes>();

}  // namespace mxspec
