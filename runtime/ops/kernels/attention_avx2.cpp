#if defined(__x86_64__)

#include "runtime/ops/kernels/attention_impl.h"
#include "runtime/ops/kernels/lanes_avx2.h"

namespace mxspec {

constinit const AttentionKernels kAttentionAvx2 = attention_kernels<Avx2Lanes>();

}  // namespace mxspec

#endif
