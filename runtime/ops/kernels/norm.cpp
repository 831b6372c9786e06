#include "runtime/ops/kernels/norm.h"

#include "runtime/ops/kernels/lanes/lane_kernels.h"

namespace mxspec {

NormFunction norm_function(NormKind kind, Isa isa) {
  const auto& kernels = lane_kernels(isa).norms;
  return kind == NormKind::kRms ? kernels.rms : kernels.layer;
}

}  // namespace mxspec
