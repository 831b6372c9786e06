#if defined(__aarch64__)

#include "runtime/ops/kernels/attention_impl.h"
#include "runtime/ops/kernels/lanes_neon.h"

namespace mxspec {

constinit const AttentionKernels kAttentionNeon = attention_kernels<NeonLanes>();

}  // namespace mxspec

#endif
