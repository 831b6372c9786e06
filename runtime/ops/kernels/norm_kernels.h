// What each instruction set's file provides to norm.cpp.
#pragma once

#include "runtime/ops/kernels/norm.h"

namespace mxspec {

struct NormKernels {
  NormFunction rms;
  NormFunction layer;
};

extern const NormKernels kNormsScalar;
extern const NormKernels kNormsAvx2;
extern const NormKernels kNormsAvx512;
extern const NormKernels kNormsNeon;

}  // namespace mxspec
