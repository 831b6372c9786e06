// Residual addition and root-mean-square norm (Zhang and Sennrich) of one row.
#pragma once

#include <cstddef>

#include "runtime/ops/kernels/isa.h"

namespace mxspec {

// One row of n values: sum = x + residual, norm = sum / sqrt(mean(sum^2) + epsilon) * weight. The squares are added up
// in 64 partial sums by position, so a row has the same bits on every instruction set and in any company.
struct NormRow {
  const float* x;
  const float* residual;
  const float* weight;
  size_t n;
  float epsilon;
  float* norm;
  float* sum;
};

using NormFunction = void (*)(const NormRow& row);

NormFunction norm_function(Isa isa);

}  // namespace mxspec
