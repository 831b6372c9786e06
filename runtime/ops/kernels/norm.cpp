#include "runtime/ops/kernels/norm.h"

#include "runtime/ops/kernels/norm_kernels.h"

namespace mxspec {
namespace {

const NormKernels& kernels_for([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::kAvx512) return kNormsAvx512;
  if (isa == Isa::kAvx2) return kNormsAvx2;
#elif defined(__aarch64__)
  if (isa == Isa::kNeon) return kNormsNeon;
#endif
  return kNormsScalar;
}

}  // namespace

NormFunction norm_function(NormKind kind, Isa isa) {
  const NormKernels& kernels = kernels_for(isa);
  return kind == NormKind::kRms ? kernels.rms : kernels.layer;
}

}  // namespace mxspec
