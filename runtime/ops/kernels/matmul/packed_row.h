// A row of a packed matrix as float32: what the lookup of a token reads (docs/formats.md has the layout).
#pragma once

#include "runtime/ops/kernels/matmul/matmul.h"

namespace mxspec {

// The first k values of row `row` (0 to 15) of a row tile, as the codec's dequantisation gives them, bit for bit: one
// multiplication each, which is exact but where the result is a subnormal. A block of scale 255 is NaN.
void decode_row(WeightFormat format, const uint8_t* row_tile, size_t row, size_t k, float* out);

}  // namespace mxspec
