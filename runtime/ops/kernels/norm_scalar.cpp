#include "runtime/ops/kernels/lanes_scalar.h"
#include "runtime/ops/kernels/norm_impl.h"

namespace mxspec {

constinit const NormKernels kNormsScalar = norm_kernels<ScalarLanes>();

}  // namespace mxspec
