// Norms of one row, with the residual addition before them: root mean square (Zhang and Sennrich), and LayerNorm.
#pragma once

#include <cstddef>

#include "formats/native/isa.h"

namespace mxspec {

enum class NormKind {
  kRms,    // sum / sqrt(mean(sum^2) + epsilon) * weight
  kLayer,  // (sum - mean) / sqrt(mean((sum - mean)^2) + epsilon) * weight + bias
};

// One row of n values: sum = x + residual, and its norm. Values are added up in 64 partial sums by position, so a row
// has the same bits on every instruction set and in every batch.
struct NormRow {
  const float* x;
  const float* residual;  // null: nothing is added, x is the sum and none is stored
  const float* weight;
  const float* bias;  // of kLayer
  size_t n;
  float epsilon;
  float* norm;
  float* sum;
};

using NormFunction = void (*)(const NormRow& row);

NormFunction norm_function(NormKind kind, Isa isa);

}  // namespace mxspec
