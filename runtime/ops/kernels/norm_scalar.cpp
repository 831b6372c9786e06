#include "runtime/ops/kernels/lanes_scalar.h"
#include "runtime/ops/kernels/norm_impl.h"

namespace mxspec {

void norm_row_scalar(const NormRow& row) { norm_row<ScalarLanes>(row); }

}  // namespace mxspec
