// A sum of rows, each with a weight: what the experts of a token give together.
#pragma once

#include <cstddef>

namespace mxspec {

struct WeightedRows {
  const float* values;   // float[.., n]
  const size_t* rows;    // [count], of values
  const float* weights;  // [count]
  size_t count, n;
};

// out[i] = acc after acc = 0 and, for each row r in its order, acc = fmaf(weights[r], row r[i], acc); a NaN is the same
// quiet NaN whatever it came from.
using WeightedSum = void (*)(const WeightedRows& of, float* out);

}  // namespace mxspec
