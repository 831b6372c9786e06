// What each instruction set's file provides to norm.cpp.
#pragma once

#include "runtime/ops/kernels/norm.h"

namespace mxspec {

void norm_row_scalar(const NormRow& row);
void norm_row_avx2(const NormRow& row);
void norm_row_avx512(const NormRow& row);

}  // namespace mxspec
