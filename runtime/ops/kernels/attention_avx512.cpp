#if defined(__x86_64__)

#include "runtime/ops/kernels/attention_impl.h"
#include "runtime/ops/kernels/lanes_avx512.h"

namespace mxspec {

constinit const AttentionKernels kAttentionAvx512 = attention_kernels<Avx512Lanes>();

}  // namespace mxspec

#endif
